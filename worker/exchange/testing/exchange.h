// The workers of a job that exchange weights and gradients among themselves, in one process, for
// tests: each is a thread with a fake GPU of its own, over the fake NCCL, and a client of
// servers that all of them share.
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
  std::unique_ptr<CollectiveSink> sink;  // which the client reads from
  std::unique_ptr<client::ParameterClient> client;
  std::unique_ptr<CollectiveSource> source;
};

class TestingExchange {
 public:
  struct Options {
    int workers = 3;
    uint64_t seed = 1;  // of the order of work on the GPUs
    DType compute_type = DType::kF32;
  };
  // All are there and have settled that they exchange.
  explicit TestingExchange(const Options& options);
  ~TestingExchange();

  client::ClientRig& rig() { return rig_; }
  const std::vector<plan::UnitSpec>& units() const { return rig_.unit_specs; }
  ExchangingWorker& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }

  // Of a worker, with the client that it has by now.
  StepEnvironment environment(ExchangingWorker& worker) const {
    return {.units = rig_.unit_specs,
            .device = worker.device.get(),
            .compute = worker.compute.get(),
            .host = worker.host.get(),
            .client = worker.client.get(),
            .barriers = &worker.barriers,
            .time_kinds = &worker.time_kinds};
  }
  // Sources that compute with weights of the exchange's type, sinks by a rule.
  absl::Status MakeSource(ExchangingWorker& worker, const CollectiveSource::Options& options);
  absl::Status MakeSink(ExchangingWorker& worker, const CollectiveSink::Options& options);

  // A thread for each worker; what each of them returned.
  using Work = std::function<absl::Status(ExchangingWorker& worker)>;
  std::vector<absl::Status> Run(const Work& work);
  // An attempt: `work` of all workers once all are connected, and the attempt's end, as a worker's
  // job has it. Where one fails the attempt is dropped, as the coordinator would. Step s has
  // weights of version s - 1.
  std::vector<absl::Status> RunAttempt(const StepAttempt& attempt, const Work& work);

 private:
  class Client;
  absl::Status Start(ExchangingWorker& worker);
  absl::Status Begin(ExchangingWorker& worker, const StepAttempt& attempt);
  void End(ExchangingWorker& worker, absl::Status& status);

  const Options options_;
  client::ClientRig rig_{{}};
  std::atomic<bool> dropped_ = false;  // the attempt, which workers ask while they wait
  std::vector<std::unique_ptr<ExchangingWorker>> workers_;
};

}  // namespace shoal::worker
