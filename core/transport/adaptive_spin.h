// Decides how long to poll before sleeping: twice the longest of the recent waits, up to a limit;
// hardly at all while waits are longer than the limit, since polling does not help then. For one
// thread at a time.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace shoal::transport {

// TransportOptions::spin is the time to poll when nothing is known about recent waits. Where recent
// waits were short, up to this many times as long is still cheaper than a sleep and its wake-up.
inline constexpr int kSpinRange = 8;

class AdaptiveSpin {
 public:
  // With `most` zero it never polls.
  explicit AdaptiveSpin(absl::Duration most) : most_(most), budget_(most) {}
  absl::Duration budget() const { return budget_; }
  // Call when a wait ended with an event after `took`. Beyond the limit, polling would not have
  // helped.
  void Found(absl::Duration took) {
    budget_ = took > most_ ? most_ / kLeast
                           : std::max(budget_ * kKept, std::clamp(2 * took, most_ / kLeast, most_));
  }
  // Call when a wait ended without an event.
  void FoundNothing() { budget_ = most_ / kLeast; }

 private:
  static constexpr int kLeast = 16;
  static constexpr double kKept = 0.9;  // short waits between longer ones do not shrink it at once
  const absl::Duration most_;
  absl::Duration budget_;
};

}  // namespace shoal::transport
