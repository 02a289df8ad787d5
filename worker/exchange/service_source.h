// Gets the model's weights from the service, on the host: UnitSource over ParameterClient.
// Prefetches along the order of use (step_uses.h). The model computes in the client's own buffers.
// Compute thread only.
#pragma once

#include <cstdint>
#include <span>

#include "client/parameter_client.h"
#include "core/base/time_kind_clock.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/exchange/step_access.h"
#include "worker/exchange/step_uses.h"

namespace shoal::worker {

class ServiceSource final : public StepWeights {
 public:
  struct Options {
    DType compute_type = DType::kF32;
    StepUses::Options uses;
  };
  ServiceSource(const Options& options, client::ParameterClient* client, LayerBarriers* barriers,
                TimeKindClock* time_kinds)
      : options_(options),
        client_(client),
        time_kinds_(time_kinds),
        uses_(options.uses, barriers) {}

  void BeginStep(std::span<const int> uses) override;
  void AddUses(std::span<const int> uses) override { uses_.AddUses(uses); }
  absl::Status EndStep() override { return absl::OkStatus(); }
  void Cancel(const absl::Status& /*why*/) override {}  // only the client waits

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override { client_->Release(unit); }

 private:
  void PrefetchDue();

  const Options options_;
  client::ParameterClient* const client_;
  TimeKindClock* const time_kinds_;
  StepUses uses_;
  int64_t prefetched_ = 0;  // uses before this one were started (or got without)
};

}  // namespace shoal::worker
