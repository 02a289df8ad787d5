#include "worker/trainer/service_source.h"

#include <algorithm>

#include "common/status.h"

namespace shoal::worker {

void ServiceSource::BeginStep(std::span<const int> uses) {
  uses_.clear();
  used_.assign(static_cast<size_t>(options_.units), false);
  next_ = 0;
  prefetched_ = 0;
  met_ = 0;
  started_.clear();
  AddUses(uses);
  int64_t begun = options_.prefetch_units;
  for (int64_t use = 0; use < this->uses() && options_.keep_for_step; ++use) {
    begun = UseAt(use).first ? std::max(begun, use + 1) : begun;
  }
  MeetBefore(options_.prefetch_units);
  PrefetchBefore(begun);
}

void ServiceSource::AddUses(std::span<const int> uses) {
  for (const int unit : uses) {
    uses_.push_back({.unit = unit, .first = !used_[static_cast<size_t>(unit)]});
    used_[static_cast<size_t>(unit)] = true;
  }
}

void ServiceSource::PrefetchBefore(int64_t end) {
  while (prefetched_ < std::min(end, uses()) && client_->Prefetch(UseAt(prefetched_).unit)) {
    ++prefetched_;
  }
}

bool ServiceSource::Meets(int64_t use) const {
  // Kept for the step, units are fetched by their first uses alone.
  return !options_.keep_for_step || UseAt(use).first;
}

void ServiceSource::MeetBefore(int64_t end) {
  for (; met_ < std::min(end, uses()); ++met_) {
    started_.push_back(Meets(met_) ? meetings_->StartGet() : 0);
  }
}

absl::StatusOr<WeightsView> ServiceSource::Get(int unit) {
  phases_->AtUnit(unit);
  const bool expected = next_ < uses() && UseAt(next_).unit == unit;
  bool prefetched = false;
  if (expected) {
    PrefetchBefore(next_ + 1 + options_.prefetch_units);
    prefetched = prefetched_ > next_;
    ++next_;
    prefetched_ = std::max(prefetched_, next_);
    MeetBefore(next_ + options_.prefetch_units);
    const int64_t meeting = started_.front();
    started_.pop_front();
    if (const absl::Status met = meetings_->AwaitGet(meeting); !met.ok()) {
      if (prefetched) {
        client_->Release(unit);
      }
      return met;
    }
  }
  absl::StatusOr<client::ParameterClient::View> view;
  {
    const PhaseClock::Scope wait(*phases_, Phase::kGetWait);
    view = client_->Get(unit);
  }
  if (prefetched) {
    client_->Release(unit);  // the prefetch's use; Get took one of its own
  }
  SHOAL_RETURN_IF_ERROR(view.status());
  return WeightsView{.data = view->data, .dtype = options_.compute_type, .count = view->count};
}

}  // namespace shoal::worker
