// How often something may be started again: so many times in any stretch of `period`. Pure.
#pragma once

#include <cstddef>
#include <deque>

#include "absl/time/time.h"

namespace shoal::cli {

class RestartBudget {
 public:
  RestartBudget(size_t restarts, absl::Duration period) : restarts_(restarts), period_(period) {}

  // Counts a restart and returns which of the period it is, from 1 on; 0: none is left. Time does
  // not go back.
  size_t Take(absl::Time now);

 private:
  const size_t restarts_;
  const absl::Duration period_;
  std::deque<absl::Time> taken_;  // within the period
};

}  // namespace shoal::cli
