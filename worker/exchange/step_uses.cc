#include "worker/exchange/step_uses.h"

#include <algorithm>

#include "core/base/check.h"

namespace shoal::worker {

void StepUses::BeginStep(std::span<const int> uses) {
  uses_.clear();
  used_.assign(static_cast<size_t>(options_.units), false);
  next_ = 0;
  due_ = 0;
  arrived_ = 0;
  started_.clear();
  AddUses(uses);
  ArriveBefore(options_.prefetch_units);
  RaiseDue(options_.prefetch_units);
  for (int64_t use = 0; use < count() && options_.keep_for_step; ++use) {
    if (uses_[static_cast<size_t>(use)].first) {
      RaiseDue(use + 1);
    }
  }
}

void StepUses::AddUses(std::span<const int> uses) {
  for (const int unit : uses) {
    uses_.push_back({.unit = unit, .first = !used_[static_cast<size_t>(unit)]});
    used_[static_cast<size_t>(unit)] = true;
  }
}

void StepUses::Advance() {
  SHOAL_CHECK(next_ < count());
  ++next_;
  ArriveBefore(next_ + options_.prefetch_units);
  RaiseDue(next_ + options_.prefetch_units);
  barrier_ = started_.front();
  started_.pop_front();
}

absl::Status StepUses::WaitAtBarrier() { return barriers_->WaitForGet(barrier_); }

void StepUses::RaiseDue(int64_t end) { due_ = std::max(due_, std::min(end, count())); }

bool StepUses::HasBarrier(int64_t use) const {
  // Units kept for the step are fetched only by their first use.
  return !options_.keep_for_step || uses_[static_cast<size_t>(use)].first;
}

void StepUses::ArriveBefore(int64_t end) {
  for (; arrived_ < std::min(end, count()); ++arrived_) {
    started_.push_back(HasBarrier(arrived_) ? barriers_->StartGet() : 0);
  }
}

}  // namespace shoal::worker
