// Sums the model's gradients over all workers at each push: GradientSink over LayerExchange.
//
// Adds gradients up in fp32 in device memory, as DeviceSink does. When one is pushed (push_rule.h),
// a reduce-scatter leaves each worker with the sum of its shard. The next gradient of the same unit
// and step starts from zeros and, in this worker's shard, the sum so far, so one call reduces and
// adds up. Flush pushes the shards to the servers, in the partitions that hold them, with zeros for
// other workers' elements.
//
// The compute thread enqueues reduce-scatters in push order; until Flush, only the device waits for
// them.
//
// Threads: see StepGradients. Failure: the next call returns the exchange's; a copy that exceeds
// `timeout` fails EndStep and all later steps. Must outlive the client's last BeginStep or
// destruction; does not call it after EndStep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/model/unit_shards.h"
#include "worker/exchange/device_buffers.h"
#include "worker/exchange/push_rule.h"
#include "worker/exchange/step_access.h"
#include "worker/peers/layer_exchange.h"

namespace shoal::worker {

class CollectiveSink final : public StepGradients {
 public:
  struct Options {
    PushRule::Options rule;
    int buffers_per_size = 3;  // with push per microbatch
    // For the device, which waits for the slowest worker.
    absl::Duration timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work, `host` memory that the device copies to at full
  // speed. The client must have the ranges of `shards`.
  static absl::StatusOr<std::unique_ptr<CollectiveSink>> Create(const Options& options,
                                                                const StepEnvironment& environment,
                                                                const plan::WorkerShards& shards,
                                                                LayerExchange* exchange);

  void BeginStep(const PushWork& work) override;
  absl::Status PushRest() override;
  absl::Status Flush() override;
  bool Acknowledged(int64_t /*pack*/) override { return false; }
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override { lasting_.Update(why).IgnoreError(); }

  bool Wants(int unit) override {
    EnterGradient(*env_.time_kinds, unit);
    return rule_.Wants(unit);
  }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::StatusOr<UnitGradient> Gradient(int unit) override;
  absl::Status Done(int unit) override { return Push(unit, rule_.Done(unit)); }
  absl::Status DoneTied() override { return Push(0, rule_.Done(0, /*tied=*/true)); }
  void AtPack(int64_t number) override { rule_.AtPack(number); }

 private:
  struct Unit {
    std::byte* filling = nullptr;  // null: not requested since its last push
    std::byte* sum = nullptr;      // of this worker's shard, on the device
    std::byte* host = nullptr;     // of the partitions that hold it; null: empty shard
    // When `sum` includes all pushes so far; null: none in this step.
    std::shared_ptr<const Event> summed;
  };

  CollectiveSink(const Options& options, const StepEnvironment& environment,
                 const plan::WorkerShards& shards, LayerExchange* exchange);
  absl::Status MakeBuffers();
  absl::Status Push(int unit, const std::optional<plan::Contribution>& contribution);
  absl::Status PushShard(int unit, Event& copied);
  absl::Status AwaitSums();
  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const std::string& NameOf(int unit) const { return env_.units[static_cast<size_t>(unit)].name; }
  int64_t ShardBytes(int unit) const { return shards_.of(unit).elements * 4; }

  const Options options_;
  const StepEnvironment env_;
  const plan::WorkerShards shards_;
  LayerExchange* const exchange_;
  const std::unique_ptr<Stream> outward_;
  PushRule rule_;
  Buffer sum_memory_;
  Buffer host_memory_;
  DeviceBuffers accumulators_;
  std::vector<Unit> units_;
  LastingStatus lasting_;  // of this and all later steps
};

}  // namespace shoal::worker
