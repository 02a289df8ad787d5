#include "worker/exchange/push_rule.h"

#include <algorithm>

#include "core/base/check.h"

namespace shoal::worker {

void PushRule::BeginStep(const PushWork& work) {
  work_ = work;
  pack_ = 0;
  std::ranges::fill(done_, 0);
}

std::optional<plan::Contribution> PushRule::Done(int unit, bool tied) {
  const auto index = static_cast<size_t>(unit);
  const int contributions = options_.contributions[index];
  const int64_t done = ++done_[index];
  const bool complete = contributions == 0 || done % contributions == 0;
  if (complete && options_.on_done) {
    options_.on_done(unit);
  }
  if (contributions == 0) {
    return std::nullopt;
  }
  if (options_.push_per_step) {
    const bool last = work_.microbatches.has_value() && done == *work_.microbatches * contributions;
    return last ? std::optional(OfWork(unit)) : std::nullopt;
  }
  if (!complete && !options_.push_each_contribution) {
    return std::nullopt;
  }
  const int keys = options_.keys_per_pack[index];
  return plan::Contribution::OfPack(pack_, keys, tied ? 0 : keys - 1);
}

plan::Contribution PushRule::OfWork(int unit) const {
  return plan::Contribution::OfWork(work_.packs, options_.keys_per_pack[static_cast<size_t>(unit)],
                                    work_.slot);
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
