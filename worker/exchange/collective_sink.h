// The model's gradients, summed over all workers at each push, as collective sharded training does:
// GradientSink over LayerExchange.
//
// Gradients are added up in fp32 in the device's memory, as DeviceSink's are. When one is to go out
// (worker/exchange/push_rule.h), a reduce-scatter leaves each worker with the sum of its shard. The
// first gradient of a unit in a step is written by its first contribution; a later one begins with
// zeros and, at the place of this worker's shard, the sum so far, so that one call both reduces and
// adds up. When the step ends (Flush), each worker pushes its shards to the servers, in the
// partitions that hold them, with zeros for what of those is others'.
//
// Reduce-scatters are put on the device by the compute thread, in the order in which gradients go
// out; nothing waits for them but other work of the device, until Flush.
//
// Threads: as StepGradients says. Failure: of the exchange, by the next call; a copy that does not
// end in `timeout` makes EndStep fail, and with it all later steps. Must outlive the client's last
// BeginStep or destruction; calls it no more after EndStep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/parameter_client.h"
#include "core/base/time_kind_clock.h"
#include "core/model/model_spec.h"
#include "core/model/unit_shards.h"
#include "worker/backend/backend.h"
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
    // For the device to get on, the slowest worker's included.
    absl::Duration timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work, `host` memory that the device's copies reach at
  // full speed. The client has the ranges of `shards`.
  static absl::StatusOr<std::unique_ptr<CollectiveSink>> Create(
      const Options& options, const std::vector<plan::UnitSpec>& units,
      const plan::WorkerShards& shards, Device* device, Stream* compute, Memory* host,
      client::ParameterClient* client, LayerExchange* exchange, TimeKindClock* time_kinds);

  void BeginStep(std::optional<int64_t> microbatches) override;
  absl::Status PushRest() override;
  absl::Status Flush() override;
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override { lasting_.Update(why).IgnoreError(); }

  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::StatusOr<UnitGradient> Gradient(int unit) override;
  absl::Status Done(int unit) override;

 private:
  struct Unit {
    std::byte* filling = nullptr;  // null: not asked for since it went out
    std::byte* sum = nullptr;      // of this worker's shard, on the device
    std::byte* host = nullptr;     // of the partitions that hold it; null: the shard is empty
    // When `sum` has all that went out so far; null: nothing in this step.
    std::shared_ptr<const Event> summed;
  };

  CollectiveSink(const Options& options, const std::vector<plan::UnitSpec>& units,
                 const plan::WorkerShards& shards, Device* device, Stream* compute,
                 client::ParameterClient* client, LayerExchange* exchange,
                 TimeKindClock* time_kinds);
  absl::Status MakeBuffers(Device& device, Memory& host);
  absl::Status Push(int unit);
  absl::Status PushShard(int unit, Event& copied);
  absl::Status AwaitSums();
  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const std::string& NameOf(int unit) const { return specs_[static_cast<size_t>(unit)].name; }
  int64_t ShardBytes(int unit) const { return shards_.of(unit).elements * 4; }

  const Options options_;
  const std::vector<plan::UnitSpec> specs_;
  const plan::WorkerShards shards_;
  Stream* const compute_;
  client::ParameterClient* const client_;
  LayerExchange* const exchange_;
  TimeKindClock* const time_kinds_;
  const std::unique_ptr<Stream> outward_;
  PushRule rule_;
  Buffer sum_memory_;
  Buffer host_memory_;
  DeviceBuffers accumulators_;
  std::vector<Unit> units_;
  LastingStatus lasting_;  // of all from now on
};

}  // namespace shoal::worker
