#include "worker/exchange/push_rule.h"

#include <algorithm>

#include "core/base/check.h"

namespace shoal::worker {

void PushRule::BeginStep(std::optional<int64_t> microbatches) {
  microbatches_ = microbatches;
  std::ranges::fill(done_, 0);
}

bool PushRule::Done(int unit) {
  const int contributions = options_.contributions[static_cast<size_t>(unit)];
  const int64_t done = ++done_[static_cast<size_t>(unit)];
  const bool complete = done % contributions == 0;
  if (complete && options_.on_done) {
    options_.on_done(unit);
  }
  return options_.push_per_step
             ? microbatches_.has_value() && done == *microbatches_ * contributions
             : complete || options_.push_each_contribution;
}

std::vector<int64_t> PushRule::Counts(const std::vector<plan::UnitSpec>& units) const {
  SHOAL_CHECK(options_.contributions.size() == units.size());
  std::vector<int64_t> counts;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    counts.push_back(options_.contributions[unit] > 0 ? units[unit].count : 0);
  }
  return counts;
}

}  // namespace shoal::worker
