#include "worker/exchange/testing/exchange.h"

#include <thread>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"
#include "worker/collectives/nccl/nccl_collectives.h"
#include "worker/exchange/gpu_direct.h"

namespace shoal::worker {
namespace {

constexpr uint64_t kFirstIncarnation = 100;

WorkerGroup PeersOf(int rank, int workers) {
  WorkerGroup peers{.job_id = "job-1", .rank = rank};
  for (int i = 0; i < workers; ++i) {
    peers.workers.push_back({.name = fmt::format("worker-{}", i),
                             .incarnation = kFirstIncarnation + static_cast<uint64_t>(i)});
  }
  return peers;
}

}  // namespace

class TestingExchange::Client final : public StageClient {
 public:
  explicit Client(PeerService& first) : first_(first) {}

  absl::StatusOr<proto::ConnectStageReply> ConnectStage(int, const proto::ConnectStageRequest&,
                                                        absl::Duration) override {
    return absl::UnimplementedError("there are no stages");
  }
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      int worker, const proto::JoinRendezvousRequest& request, absl::Duration) override {
    SHOAL_CHECK(worker == 0);
    return first_.JoinRendezvous(request);
  }
  void Cancel() override {}

 private:
  PeerService& first_;
};

TestingExchange::TestingExchange(const Options& options) : options_(options) {
  gpu::SetFakeGpus({.count = options.workers, .seed = options.seed});
  SetFakeNccl({});
  for (int rank = 0; rank < options.workers; ++rank) {
    workers_.push_back(std::make_unique<ExchangingWorker>());
    workers_.back()->rank = rank;
  }
  for (const absl::Status& status : Run([this](ExchangingWorker& w) { return Start(w); })) {
    SHOAL_CHECK(status.ok());
  }
}

TestingExchange::~TestingExchange() {
  Run([](ExchangingWorker& worker) {
    worker.source.reset();
    worker.client.reset();
    worker.sink.reset();
    worker.exchange.reset();
    return absl::OkStatus();
  });
}

absl::Status TestingExchange::Start(ExchangingWorker& worker) {
  SHOAL_ASSIGN_OR_RETURN(worker.device, MakeCudaDevice({.gpu = worker.rank}));
  worker.compute = worker.device->NewStream();
  worker.host = worker.device->NewHostMemory(0);
  worker.shards = plan::ShardUnits(rig_.unit_specs, rig_.partitions, worker.rank, options_.workers);
  SHOAL_ASSIGN_OR_RETURN(
      worker.exchange,
      LayerExchange::Create({.peers = PeersOf(worker.rank, options_.workers),
                             .client = std::make_unique<Client>(workers_.front()->service),
                             .service = &worker.service,
                             .collectives = OpenNccl(*worker.device),
                             .device = worker.device.get(),
                             .generation = rig_.options.generation,
                             .cancellation = &worker.cancellation,
                             .check = [this] {
                               return dropped_ ? Aborted("the attempt was dropped")
                                               : absl::OkStatus();
                             }}));
  if (!worker.exchange->on()) {
    return Internal("they do not exchange: {}", worker.exchange->why_not());
  }
  client::ClientOptions options{
      .incarnation = kFirstIncarnation + static_cast<uint64_t>(worker.rank),
      .compute_type = options_.compute_type,
      .ranges = worker.shards.whole(),
      .keep_for_step = true,
      .view_memory = PinnedAllocator(worker.host.get())};
  for (const plan::UnitSpec& unit : rig_.unit_specs) {
    if (worker.shards.of(unit.index).own.count > 0) {
      options.units.push_back(unit.index);
    }
  }
  SHOAL_ASSIGN_OR_RETURN(worker.client, rig_.NewClient(options));
  return absl::OkStatus();
}

absl::Status TestingExchange::MakeSource(ExchangingWorker& worker,
                                         const CollectiveSource::Options& options) {
  CollectiveSource::Options with = options;
  with.compute_type = options_.compute_type;
  with.uses.units = rig_.units();
  SHOAL_ASSIGN_OR_RETURN(
      worker.source,
      CollectiveSource::Create(with, environment(worker), worker.shards, worker.exchange.get()));
  return absl::OkStatus();
}

absl::Status TestingExchange::MakeSink(ExchangingWorker& worker,
                                       const CollectiveSink::Options& options) {
  SHOAL_ASSIGN_OR_RETURN(worker.sink, CollectiveSink::Create(options, environment(worker),
                                                             worker.shards, worker.exchange.get()));
  return absl::OkStatus();
}

std::vector<absl::Status> TestingExchange::Run(const Work& work) {
  std::vector<absl::Status> statuses(workers_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < workers_.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = work(*workers_[i]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return statuses;
}

std::vector<absl::Status> TestingExchange::RunAttempt(const StepAttempt& attempt,
                                                      const Work& work) {
  dropped_ = false;
  rig_.Publish(attempt.step - 1);
  rig_.OpenAttempt(attempt.step, attempt.attempt);
  for (const absl::Status& status :
       Run([&](ExchangingWorker& worker) { return Begin(worker, attempt); })) {
    SHOAL_CHECK(status.ok());
  }
  return Run([&](ExchangingWorker& worker) {
    absl::Status status = work(worker);
    status.Update(worker.exchange->status());
    End(worker, status);
    return status;
  });
}

absl::Status TestingExchange::Begin(ExchangingWorker& worker, const StepAttempt& attempt) {
  SHOAL_RETURN_IF_ERROR(
      worker.client->BeginStep(attempt.step, attempt.attempt, rig_.options.generation));
  return worker.exchange->BeginAttempt(attempt, rig_.options.generation);
}

void TestingExchange::End(ExchangingWorker& worker, absl::Status& status) {
  worker.exchange->EndAttempt(status);
  if (!status.ok()) {
    dropped_ = true;
    worker.compute->Synchronize().IgnoreError();
  }
  if (worker.source != nullptr) {
    status.Update(worker.source->EndStep());
  }
  if (worker.sink != nullptr) {
    status.Update(worker.sink->EndStep());
  }
}

}  // namespace shoal::worker
