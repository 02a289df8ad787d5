#include "worker/exchange/service_source.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::worker {

void ServiceSource::BeginStep(std::span<const int> uses) {
  prefetched_ = 0;
  uses_.BeginStep(uses);
  PrefetchDue();
}

void ServiceSource::PrefetchDue() {
  while (prefetched_ < uses_.due() && client_->Prefetch(uses_.unit(prefetched_))) {
    ++prefetched_;
  }
}

absl::StatusOr<WeightsView> ServiceSource::Get(int unit) {
  time_kinds_->AtUnit(unit);
  bool prefetched = false;
  if (uses_.Expects(unit)) {
    uses_.Advance();
    PrefetchDue();
    prefetched = prefetched_ >= uses_.next();
    prefetched_ = std::max(prefetched_, uses_.next());
    if (const absl::Status met = uses_.WaitAtBarrier(); !met.ok()) {
      if (prefetched) {
        client_->Release(unit);
      }
      return met;
    }
  }
  absl::StatusOr<client::ParameterClient::View> view;
  {
    const TimeKindClock::Scope wait(*time_kinds_, TimeKind::kGetWait);
    view = client_->Get(unit);
    if (view.ok()) {
      time_kinds_->WaitedFor(view->last_server);
    }
  }
  if (prefetched) {
    client_->Release(unit);  // the prefetch's use; Get took its own
  }
  SHOAL_RETURN_IF_ERROR(view.status());
  return WeightsView{.data = view->data, .dtype = options_.compute_type, .count = view->count};
}

}  // namespace shoal::worker
