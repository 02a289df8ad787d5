// Gathers the model's weights from all workers at each use: UnitSource over LayerExchange.
//
// Once a step each worker gets its shards of all units from the servers and copies them to the
// device. A use is an all-gather into a buffer of the device, started ahead along the order of use
// (step_uses.h). The compute thread starts them at points that follow from that order alone, so all
// workers start them in the same order. It waits only for servers; the device waits for gathers.
//
// Threads: as StepWeights says. Failure: the next Get returns it, until the step ends; copies that
// do not end within `timeout` fail EndStep and all later steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/unit_shards.h"
#include "worker/exchange/device_buffers.h"
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
  // `compute` is the stream of the model's work. The client must have the ranges of `shards` and
  // keep them for the step. `barriers` must be off: collectives act as barriers.
  static absl::StatusOr<std::unique_ptr<CollectiveSource>> Create(
      const Options& options, const StepEnvironment& environment, const plan::WorkerShards& shards,
      LayerExchange* exchange);

  void BeginStep(std::span<const int> uses) override;
  void AddUses(std::span<const int> uses) override { uses_.AddUses(uses); }
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override { lasting_.Update(why).IgnoreError(); }

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override;

 private:
  struct Unit {
    std::byte* shard = nullptr;  // this worker's, on the device, padded with zeros
    bool prefetched = false;     // by the client, which holds a use
    bool has_shard = false;      // for this step, once the device reaches `copied`
    std::shared_ptr<const Event> copied;
    std::byte* data = nullptr;  // gathered, once the device reaches `gathered`
    std::shared_ptr<const Event> gathered;
    int uses = 0;  // started, not released
  };

  CollectiveSource(const Options& options, const StepEnvironment& environment,
                   const plan::WorkerShards& shards, LayerExchange* exchange);
  absl::Status MakeBuffers();
  // Starts the due uses for which there are buffers.
  absl::Status StartDue();
  absl::Status TakeShard(int unit);
  absl::Status Gather(int unit, const DeviceBuffer& buffer);
  void GiveBack(int unit);
  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const std::string& NameOf(int unit) const { return env_.units[static_cast<size_t>(unit)].name; }
  int64_t element() const { return SizeOf(options_.compute_type); }

  const Options options_;
  const StepEnvironment env_;
  const plan::WorkerShards shards_;
  LayerExchange* const exchange_;
  const std::unique_ptr<Stream> inward_;
  StepUses uses_;
  int64_t started_ = 0;  // uses before this one were started
  Buffer shard_memory_;
  DeviceBuffers buffers_;
  std::vector<Unit> units_;
  absl::Status error_;     // of the step
  LastingStatus lasting_;  // of this and all later steps
};

}  // namespace shoal::worker
