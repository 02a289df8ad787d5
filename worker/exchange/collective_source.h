// The model's weights, gathered from all workers at each use, as collective sharded training does:
// UnitSource over LayerExchange.
//
// Once a step each worker gets its shards of all units from the servers (the partitions that hold
// them) and copies them to the device. A use is an all-gather of the unit's shards into a buffer of
// the device, started ahead along the order of use (worker/exchange/step_uses.h). The compute
// thread starts them itself, at points that follow from that order alone: so all workers do it in
// the same order. It waits for servers only, for a shard that has not come yet; what is gathered is
// waited for by the device.
//
// Threads: as StepWeights says. Failure: what goes wrong is returned by the next Get, until the
// step ends; copies that do not end in `timeout` make EndStep fail, and with it all later steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/parameter_client.h"
#include "core/base/time_kind_clock.h"
#include "core/model/model_spec.h"
#include "core/model/unit_shards.h"
#include "worker/backend/backend.h"
#include "worker/exchange/device_buffers.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/exchange/step_access.h"
#include "worker/exchange/step_uses.h"
#include "worker/peers/layer_exchange.h"

namespace shoal::worker {

class CollectiveSource final : public StepWeights {
 public:
  struct Options {
    DType compute_type = DType::kF32;
    StepUses::Options uses;
    int buffers_per_size = 4;  // with layer residency: units held + prefetched
    absl::Duration timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work. The client has the ranges of `shards` and keeps
  // what it got for the step. `barriers` are off: collectives are barriers themselves.
  static absl::StatusOr<std::unique_ptr<CollectiveSource>> Create(
      const Options& options, const std::vector<plan::UnitSpec>& units,
      const plan::WorkerShards& shards, Device* device, Stream* compute,
      client::ParameterClient* client, LayerExchange* exchange, LayerBarriers* barriers,
      TimeKindClock* time_kinds);

  void BeginStep(std::span<const int> uses) override;
  void AddUses(std::span<const int> uses) override { uses_.AddUses(uses); }
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override { lasting_.Update(why).IgnoreError(); }

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override;

 private:
  struct Unit {
    std::byte* shard = nullptr;  // this worker's, on the device, padded with zeros
    bool prefetched = false;     // at the client, with a use
    bool has_shard = false;      // of this step, once the device has come to `copied`
    std::shared_ptr<const Event> copied;
    std::byte* data = nullptr;  // gathered, once the device has come to `gathered`
    std::shared_ptr<const Event> gathered;
    int uses = 0;  // started and not released
  };

  CollectiveSource(const Options& options, const std::vector<plan::UnitSpec>& units,
                   const plan::WorkerShards& shards, Device* device, Stream* compute,
                   client::ParameterClient* client, LayerExchange* exchange,
                   LayerBarriers* barriers, TimeKindClock* time_kinds);
  absl::Status MakeBuffers(Device& device);
  // Starts what is due, as far as there are buffers.
  absl::Status StartDue();
  absl::Status TakeShard(int unit);
  absl::Status Gather(int unit, const DeviceBuffer& buffer);
  void GiveBack(int unit);
  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const std::string& NameOf(int unit) const { return specs_[static_cast<size_t>(unit)].name; }
  int64_t element() const { return SizeOf(options_.compute_type); }

  const Options options_;
  const std::vector<plan::UnitSpec> specs_;
  const plan::WorkerShards shards_;
  Stream* const compute_;
  client::ParameterClient* const client_;
  LayerExchange* const exchange_;
  TimeKindClock* const time_kinds_;
  const std::unique_ptr<Stream> inward_;
  StepUses uses_;
  int64_t started_ = 0;  // uses before this one were started
  Buffer shard_memory_;
  DeviceBuffers buffers_;
  std::vector<Unit> units_;
  absl::Status error_;     // of the step
  LastingStatus lasting_;  // of all from now on
};

}  // namespace shoal::worker
