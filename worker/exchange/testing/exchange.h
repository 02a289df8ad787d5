// A job's workers that exchange weights and gradients, in one process, for tests: each is a thread
// with its own fake GPU, over the fake NCCL, and a client of shared servers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/parameter_client.h"
#include "client/testing/client_rig.h"
#include "core/base/testing/status.h"
#include "core/base/time_kind_clock.h"
#include "core/model/unit_shards.h"
#include "worker/backend/backend.h"
#include "worker/exchange/collective_sink.h"
#include "worker/exchange/collective_source.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/peers/layer_exchange.h"
#include "worker/peers/peer_service.h"

namespace shoal::worker {

struct ExchangingWorker {
  int rank = 0;
  PeerService service{absl::Milliseconds(100)};
  Cancellation cancellation;
  TimeKindClock time_kinds{RealClock()};
  LayerBarriers barriers{false, nullptr, &time_kinds};
  plan::WorkerShards shards;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Memory> host;  // pinned
  std::unique_ptr<LayerExchange> exchange;
  std::unique_ptr<CollectiveSink> sink;  // the client reads from it
  std::unique_ptr<client::ParameterClient> client;
  std::unique_ptr<CollectiveSource> source;
};

class TestingExchange {
 public:
  struct Options {
    int workers = 3;
    uint64_t seed = 1;  // for the order of work on the GPUs
    DType compute_type = DType::kF32;
  };
  // All workers are started and have agreed to exchange.
  explicit TestingExchange(const Options& options);
  ~TestingExchange();

  client::ClientRig& rig() { return rig_; }
  const std::vector<plan::UnitSpec>& units() const { return rig_.unit_specs; }
  ExchangingWorker& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }

  // For a worker, with its current client.
  StepEnvironment environment(ExchangingWorker& worker) const {
    return {.units = rig_.unit_specs,
            .device = worker.device.get(),
            .compute = worker.compute.get(),
            .host = worker.host.get(),
            .client = worker.client.get(),
            .barriers = &worker.barriers,
            .time_kinds = &worker.time_kinds};
  }
  // Makes a source with weights of the exchange's type, or a sink.
  absl::Status MakeSource(ExchangingWorker& worker, const CollectiveSource::Options& options);
  absl::Status MakeSink(ExchangingWorker& worker, const CollectiveSink::Options& options);

  // Runs one thread per worker; returns their results.
  using Work = std::function<absl::Status(ExchangingWorker& worker)>;
  std::vector<absl::Status> Run(const Work& work);
  // Runs an attempt: `work` of all workers once all are connected, then the attempt's end, as in a
  // worker's job. If one fails the attempt is dropped, as the coordinator would. Step s has weights
  // of version s - 1.
  std::vector<absl::Status> RunAttempt(const StepAttempt& attempt, const Work& work);

 private:
  class Client;
  absl::Status Start(ExchangingWorker& worker);
  absl::Status Begin(ExchangingWorker& worker, const StepAttempt& attempt);
  void End(ExchangingWorker& worker, absl::Status& status);

  const Options options_;
  client::ClientRig rig_{{}};
  std::atomic<bool> dropped_ = false;  // the attempt; waiting workers check it
  std::vector<std::unique_ptr<ExchangingWorker>> workers_;
};

}  // namespace shoal::worker
