// How long to look for something before sleeping: twice what the longest of recent waits took, up
// to a limit; next to nothing while waits are longer than that, since looking does not help then.
// One thread at a time.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace shoal::transport {

// TransportOptions::spin is what is worth a look for whoever knows nothing better. Who knows how
// long recent waits took may look for so many times as long before a sleep and its wake-up are the
// cheaper choice.
inline constexpr int kSpinRange = 8;

class AdaptiveSpin {
 public:
  // `most` zero: never looks.
  explicit AdaptiveSpin(absl::Duration most) : most_(most), budget_(most) {}
  absl::Duration budget() const { return budget_; }
  // A wait ended with an event after `took`. Longer than the limit: looking would not have helped.
  void Found(absl::Duration took) {
    budget_ = took > most_ ? most_ / kLeast
                           : std::max(budget_ * kKept, std::clamp(2 * took, most_ / kLeast, most_));
  }
  // A wait ended without.
  void FoundNothing() { budget_ = most_ / kLeast; }

 private:
  static constexpr int kLeast = 16;
  static constexpr double kKept = 0.9;  // short waits between longer ones do not shrink it at once
  const absl::Duration most_;
  absl::Duration budget_;
};

}  // namespace shoal::transport
