// What rendering a template may cost. Templates are written by others, and some would never end.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/base/status.h"

namespace shoal::jinja {

// About what a small text takes beside its bytes.
inline constexpr size_t kPartBytes = 128;

struct Limits {
  int64_t steps = 10'000'000;             // of evaluation, elements looked at among them
  int64_t text_bytes = int64_t{1} << 30;  // of all texts made on the way, together
  int64_t output_bytes = int64_t{64} << 20;
  int depth = 1000;  // of expressions, statements and macros within each other
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  absl::Status Spend(int64_t steps) {
    steps_ += steps;
    return steps_ <= limits_.steps
               ? absl::OkStatus()
               : ResourceExhausted("more than {} steps; does a loop grow without end?",
                                   limits_.steps);
  }
  // Text takes a step for each 64 bytes, besides its memory.
  absl::Status Make(size_t bytes) {
    bytes_ += static_cast<int64_t>(bytes);
    if (bytes_ > limits_.text_bytes) {
      return ResourceExhausted("more than {} bytes of text; does a loop grow without end?",
                               limits_.text_bytes);
    }
    return Spend(static_cast<int64_t>(bytes / 64) + 1);
  }
  const Limits& limits() const { return limits_; }

 private:
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace shoal::jinja
