// The model's weights from the service: UnitSource over ParameterClient, with prefetch ahead along
// the order of use.
//
// When use k is asked for, uses k + 1 to k + prefetch_units are started as well. A use that comes
// up while an earlier use of the same unit is still held or prefetched shares it; so what is
// fetched follows from the order alone and not from timing, and plan::PlanTraffic counts it
// exactly. The order is that of one microbatch and repeats, across microbatches too. With step
// residency everything is started when the step begins.
//
// Used by the compute thread alone.
#pragma once

#include <cstdint>
#include <vector>

#include "client/parameter_client.h"
#include "worker/model/unit_access.h"
#include "worker/trainer/phase_clock.h"

namespace shoal::worker {

class ServiceSource final : public UnitSource {
 public:
  struct Options {
    DType compute_type = DType::kF32;
    bool keep_for_step = false;
    int64_t prefetch_units = 2;
    std::vector<int> use_order;  // of one microbatch: plan::UseOrder
  };
  ServiceSource(const Options& options, client::ParameterClient* client, PhaseClock* phases)
      : options_(options), client_(client), phases_(phases) {}

  // After the client's BeginStep.
  void BeginStep(int64_t microbatches);

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override { client_->Release(unit); }

 private:
  int UnitAt(int64_t use) const {
    return options_
        .use_order[static_cast<size_t>(use % static_cast<int64_t>(options_.use_order.size()))];
  }
  void PrefetchBefore(int64_t end);

  const Options options_;
  client::ParameterClient* const client_;
  PhaseClock* const phases_;
  int64_t uses_ = 0;        // of this step
  int64_t next_ = 0;        // the use that Get should be asked for
  int64_t prefetched_ = 0;  // uses before this one were started (or were got without)
};

}  // namespace shoal::worker
