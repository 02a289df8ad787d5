// What rendering a template may cost. Templates are written by others, and some would never end.
//
// Whoever works charges first, for as much as the work can come to: a refusal comes before the
// memory is taken or the time is spent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "core/base/status.h"

namespace shoal::jinja {

// About what a text, a list or a mapping takes beside what is in it.
inline constexpr size_t kPartBytes = 128;

struct Limits {
  int64_t steps = 10'000'000;             // of evaluation, elements looked at among them
  int64_t made_bytes = int64_t{1} << 30;  // of all texts and lists made on the way, together
  int64_t output_bytes = int64_t{64} << 20;
  int depth = 1000;  // of expressions, statements and macros within each other
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  absl::Status Spend(size_t steps) {
    if (steps > static_cast<size_t>(limits_.steps - steps_)) {
      return ResourceExhausted("more than {} steps; does a loop grow without end?", limits_.steps);
    }
    steps_ += static_cast<int64_t>(steps);
    return absl::OkStatus();
  }
  // Bytes compared or searched.
  absl::Status Read(size_t bytes) { return Spend(bytes / 64); }
  // Bytes looked at character by character.
  absl::Status Walk(size_t bytes) { return Spend(bytes / 4); }
  // `times` parts of so many bytes, of new memory.
  absl::Status Make(size_t bytes, size_t times = 1) {
    size_t all = 0;
    if (__builtin_mul_overflow(bytes, times, &all) ||
        all > static_cast<size_t>(limits_.made_bytes - made_)) {
      return ResourceExhausted(
          "more than {} bytes of text and lists; does a loop grow without end?",
          limits_.made_bytes);
    }
    made_ += static_cast<int64_t>(all);
    return Spend(all / 64 + 1);
  }
  const Limits& limits() const { return limits_; }

 private:
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t made_ = 0;
};

}  // namespace shoal::jinja
