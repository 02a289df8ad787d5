#include "tests/in_process/cluster.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/grpc_server_client.h"
#include "client/parameter_client.h"
#include "core/base/memory/host_memory.h"
#include "core/base/metrics.h"
#include "core/base/status.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/member_session.h"
#include "core/rpc/parameter_server_service.h"
#include "core/rpc/server.h"
#include "core/rpc/stage_service.h"
#include "core/transport/registry/job_transport.h"
#include "core/transport/registry/registry.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/files/job_loader.h"
#include "server/coordinator/grpc_server_client.h"
#include "server/service/moves/server_calls.h"
#include "server/service/parameter_service.h"
#include "worker/job/trainer.h"

namespace shoal::testing {
namespace {

std::string Local(int port) { return fmt::format("127.0.0.1:{}", port); }

class CoordinatorProcess {
 public:
  static absl::StatusOr<std::unique_ptr<CoordinatorProcess>> Start(const rpc::Token& token) {
    auto process = std::make_unique<CoordinatorProcess>();
    SHOAL_ASSIGN_OR_RETURN(process->coordinator_,
                           server::Coordinator::Create(
                               {.version = rpc::ProgramVersion()}, server::LoadJob,
                               server::MakeGrpcServerClients(token), server::MakeMemoryStateStore(),
                               RealClock(), process->metrics_));
    std::vector<std::unique_ptr<rpc::Service>> services;
    services.push_back(rpc::MakeCoordinatorService(process->coordinator_.get()));
    SHOAL_ASSIGN_OR_RETURN(process->server_,
                           rpc::Server::Start({.security = token}, std::move(services)));
    return process;
  }
  ~CoordinatorProcess() {
    coordinator_->Stop();
    server_->Shutdown(absl::Seconds(1));
  }
  std::string address() const { return Local(server_->port()); }

 private:
  Metrics metrics_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<rpc::Server> server_;
};

class ServerProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& coordinator,
                                                              const rpc::Token& token,
                                                              const ClusterOptions& cluster) {
    auto process = std::make_unique<ServerProcess>();
    process->service_ = std::make_unique<server::ParameterService>(
        server::ParameterServiceOptions{
            .create_transport =
                [encrypted = cluster.encrypted](const std::string& name, const plan::Job& job,
                                                int64_t bytes, auto gpu_memory) {
                  return transport::CreateJobTransport(name, job.service, {},
                                                       {.encrypt = encrypted,
                                                        .gpu_memory = std::move(gpu_memory),
                                                        .gpu_job = transport::IsGpuJob(job)},
                                                       bytes);
                },
            .open_gpu = cluster.open_gpu,
            .threads = 1,
            .connect_server =
                [token](const std::string& address) {
                  return server::CallsOfGiver(address, token);
                },
            .connect_backup =
                [token](const std::string& address) {
                  return server::CallsOfBackup(address, token);
                },
            .available_memory = AvailableMemory},
        &process->metrics_);
    std::vector<std::unique_ptr<rpc::Service>> services;
    services.push_back(rpc::MakeParameterServerService(process->service_.get()));
    SHOAL_ASSIGN_OR_RETURN(process->server_,
                           rpc::Server::Start({.security = token}, std::move(services)));
    process->address_ = Local(process->server_->port());
    SHOAL_ASSIGN_OR_RETURN(
        process->session_,
        rpc::MemberSession::Join(rpc::Channel::Create(coordinator, token, rpc::Role::kCoordinator),
                                 {.role = proto::ROLE_SERVER, .address = process->address_},
                                 [](const absl::Status&) {}));
    return process;
  }
  ~ServerProcess() {
    session_.reset();
    service_->Stop();
    server_->Shutdown(absl::Seconds(1));
  }
  int index() const { return session_->index(); }
  const std::string& address() const { return address_; }
  // That clients have made to it.
  int64_t connections() const {
    int64_t connections = 0;
    std::istringstream text(metrics_.Text());
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with("shoal_ps_connections_total{")) {
        connections += std::stoll(line.substr(line.rfind(' ')));
      }
    }
    return connections;
  }
  absl::StatusOr<proto::GetChecksumsReply> Checksums(const std::string& job_id) {
    proto::GetChecksumsRequest request;
    request.set_job_id(job_id);
    return service_->GetChecksums(request);
  }

 private:
  Metrics metrics_;
  std::unique_ptr<server::ParameterService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
  std::unique_ptr<rpc::MemberSession> session_;
};

class WorkerProcess {
 public:
  // It connects to servers once somebody has wished what is to be wished.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const std::string& coordinator,
                                                              const rpc::Token& token,
                                                              const ClusterOptions& cluster,
                                                              const absl::Notification& wished) {
    const transport::FaultOptions& faults = cluster.faults;
    auto process = std::make_unique<WorkerProcess>();
    std::vector<std::unique_ptr<rpc::Service>> services;
    services.push_back(rpc::MakeStageService(&process->service_));
    SHOAL_ASSIGN_OR_RETURN(process->server_,
                           rpc::Server::Start({.security = token}, std::move(services)));
    process->trainer_ = std::make_unique<worker::Trainer>(
        rpc::Channel::Create(coordinator, token, rpc::Role::kCoordinator), process->metrics_);
    SHOAL_ASSIGN_OR_RETURN(
        process->session_,
        rpc::MemberSession::Join(
            rpc::Channel::Create(coordinator, token, rpc::Role::kCoordinator),
            {.role = proto::ROLE_WORKER, .address = Local(process->server_->port())},
            [trainer = process->trainer_.get()](const absl::Status& why) { trainer->Stop(why); }));
    const int index = process->session_->index();
    worker::WorkerJobOptions options;
    options.name = fmt::format("worker-{}", index);
    options.index = process->session_->index();
    options.incarnation = process->session_->incarnation();
    options.threads = 1;
    options.transports.encrypt = cluster.encrypted;
    options.make_server_client = [token, &wished](const std::vector<std::string>& addresses) {
      wished.WaitForNotification();
      return std::make_unique<client::GrpcServerClient>(addresses, token);
    };
    options.stage_service = &process->service_;
    options.make_stage_client = [token](const worker::WorkerGroup& group) {
      return worker::MakeGrpcStageClient(group, token);
    };
    if (cluster.open_device) {
      options.open_device = [open = cluster.open_device, index](const worker::DeviceRequest&) {
        return open(index);
      };
    }
    if (faults.seed != 0) {
      options.wrap_transport = [faults, index](std::unique_ptr<transport::Transport> inner) {
        transport::FaultOptions own = faults;
        own.seed = faults.seed * 100 + static_cast<uint64_t>(index);
        return transport::MakeFaultTransport(std::move(inner), own);
      };
    }
    process->thread_ = std::thread([worker = process.get(), options] {
      worker->status_ = worker->trainer_->Run(options);
      worker->session_->Leave(std::string(Message(worker->status_)));
    });
    return process;
  }
  ~WorkerProcess() {
    Join().IgnoreError();
    service_.Close(absl::CancelledError("the worker is leaving"));
  }
  absl::Status Join() {
    if (thread_.joinable()) {
      thread_.join();
    }
    return status_;
  }
  // It ends wherever it is.
  void Lose() { trainer_->Stop(absl::UnavailableError("it is lost")); }
  int index() const { return session_->index(); }
  std::string metrics() const { return metrics_.Text(); }

 private:
  Metrics metrics_;
  worker::StageService service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<worker::Trainer> trainer_;
  std::unique_ptr<rpc::MemberSession> session_;
  absl::Status status_;
  std::thread thread_;
};

// Connects to servers as anybody outside of the job can who has the token.
class Outsider {
 public:
  absl::Status Connect(const plan::Job& job, const std::vector<std::string>& servers,
                       const rpc::Token& token, client::ClientOptions options, bool encrypted) {
    SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, plan::ReadJobModel(job));
    if (spec.from_files) {
      SHOAL_ASSIGN_OR_RETURN(model_, formats::HfModel::Open(job.model));
      options.files = [this](int unit, int64_t offset, std::span<float> out) {
        return model_->ReadUnit(unit, offset, out);
      };
    }
    units_ = plan::JobUnits(spec, job.train);
    const auto partitions = plan::BuildPartitions(units_, job.service.partition_bytes);
    const int count = static_cast<int>(servers.size());
    SHOAL_ASSIGN_OR_RETURN(transport_, transport::CreateTransport("tcp", {.encrypt = encrypted}));
    servers_.emplace(servers, token);
    SHOAL_ASSIGN_OR_RETURN(client_, client::ParameterClient::Create(
                                        options, units_, partitions,
                                        plan::PlaceShards(partitions, count, /*generation=*/1),
                                        count, &*servers_, {transport_.get()}));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::vector<float>>> ReadWeights() {
    SHOAL_RETURN_IF_ERROR(client_->BeginRead(client_->published()));
    std::vector<std::vector<float>> weights;
    for (const plan::UnitSpec& unit : units_) {
      SHOAL_ASSIGN_OR_RETURN(const auto view, client_->Get(unit.index));
      const auto* from = static_cast<const float*>(view.data);
      weights.emplace_back(from, from + view.count);
      client_->Release(unit.index);
    }
    return weights;
  }

 private:
  std::vector<plan::UnitSpec> units_;
  std::unique_ptr<formats::HfModel> model_;
  std::unique_ptr<transport::Transport> transport_;
  std::optional<client::GrpcServerClient> servers_;
  std::unique_ptr<client::ParameterClient> client_;
};

// Steps wait meanwhile for workers that wait for that.
absl::Status Wish(rpc::Channel& coordinator, int servers) {
  proto::ScaleRequest wish;
  wish.set_servers(servers);
  wish.set_rate(int64_t{1} << 40);  // no wave waits for it
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (servers > 0) {
    const absl::Status wished = coordinator.Call(&rpc::CoordinatorService::Scale, wish).status();
    if (!absl::IsFailedPrecondition(wished) || absl::Now() > deadline) {
      return wished;
    }
    absl::SleepFor(absl::Milliseconds(2));  // it does not train yet
  }
  return absl::OkStatus();
}

absl::Status Watch(const std::string& coordinator, const std::string& job_id,
                   const rpc::Token& token, const std::function<void()>& on_first_step,
                   ClusterRun& run) {
  proto::WatchJobRequest request;
  request.set_job_id(job_id);
  return rpc::Channel::Create(coordinator, token, rpc::Role::kCoordinator)
      ->Watch(&rpc::CoordinatorService::WatchJob, request,
              [&](const proto::JobEvent& event) {
                if (event.has_step()) {
                  run.steps.push_back(event.step());
                  if (run.steps.size() == 1) {
                    on_first_step();
                  }
                } else if (event.has_validation()) {
                  run.validations.push_back(event.validation());
                } else if (event.has_trace()) {
                  run.traces.push_back(event.trace());
                } else if (event.has_done() || event.has_failed()) {
                  run.end = event;
                }
                return true;
              },
              {.deadline = absl::Seconds(90)});
}

}  // namespace

absl::StatusOr<ClusterRun> Train(plan::Job job, const std::string& token_file,
                                 const ClusterOptions& options) {
  job.cluster.servers = options.servers;
  job.cluster.workers = options.workers;
  job.cluster.local = options.local;
  const rpc::Token token = rpc::Token::Generate();
  SHOAL_ASSIGN_OR_RETURN(const auto coordinator, CoordinatorProcess::Start(token));
  std::vector<std::unique_ptr<ServerProcess>> servers;
  std::vector<std::string> addresses(static_cast<size_t>(options.servers));
  for (int i = 0; i < options.servers; ++i) {
    SHOAL_ASSIGN_OR_RETURN(auto server,
                           ServerProcess::Start(coordinator->address(), token, options));
    addresses[static_cast<size_t>(server->index())] = server->address();
    servers.push_back(std::move(server));
  }
  absl::Notification wished;
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  for (int i = 0; i < options.workers; ++i) {
    SHOAL_ASSIGN_OR_RETURN(auto worker,
                           WorkerProcess::Start(coordinator->address(), token, options, wished));
    workers.push_back(std::move(worker));
  }
  const auto channel = rpc::Channel::Create(coordinator->address(), token, rpc::Role::kCoordinator);
  proto::SubmitJobRequest submit;
  *submit.mutable_job() = plan::ToMessage(job);
  submit.set_token_file(token_file);
  submit.set_trace(options.trace);
  submit.set_resume(options.resume);
  submit.set_validation_file(options.validation_file);
  SHOAL_ASSIGN_OR_RETURN(const proto::SubmitJobReply submitted,
                         channel->Call(&rpc::CoordinatorService::SubmitJob, submit));
  const absl::Status wish = Wish(*channel, options.wanted_servers);
  wished.Notify();
  SHOAL_RETURN_IF_ERROR(wish);
  ClusterRun run;
  const auto meddle = [&] {
    if (options.stranger) {
      run.stranger = Outsider().Connect(
          job, addresses, token,
          {.job_id = submitted.job_id(), .incarnation = 0xdead, .name = "stranger"},
          options.encrypted);
    }
    for (auto& worker : workers) {
      if (worker->index() == options.lost_worker) {
        worker->Lose();
      }
    }
    std::erase_if(servers, [&](const auto& it) { return it->index() == options.lost_server; });
  };
  SHOAL_RETURN_IF_ERROR(Watch(coordinator->address(), submitted.job_id(), token, meddle, run));
  for (auto& worker : workers) {
    const absl::Status ended = worker->Join();
    if (worker->index() != options.lost_worker) {
      SHOAL_RETURN_IF_ERROR(ended);
    }
  }
  run.worker_metrics = workers.front()->metrics();
  if (options.wanted_servers > 0) {
    SHOAL_ASSIGN_OR_RETURN(run.scaling, channel->Call(&rpc::CoordinatorService::Scale, {}));
  }
  for (auto& server : servers) {
    run.connections += server->connections();
    const absl::StatusOr<proto::GetChecksumsReply> reply = server->Checksums(submitted.job_id());
    if (options.wanted_servers > 0 && absl::IsNotFound(reply.status())) {
      continue;  // it holds nothing of the job any more
    }
    SHOAL_RETURN_IF_ERROR(reply.status());
    for (const proto::PartitionChecksum& partition : reply->partitions()) {
      run.checksums.resize(
          std::max(run.checksums.size(), static_cast<size_t>(partition.partition()) + 1));
      run.checksums[static_cast<size_t>(partition.partition())] = partition.hash();
    }
  }
  if (options.wanted_servers > 0 || options.lost_server >= 0) {
    return run;
  }
  Outsider reader;
  SHOAL_RETURN_IF_ERROR(reader.Connect(
      job, addresses, token,
      {.job_id = submitted.job_id(), .incarnation = 1, .name = "reader", .read_only = true},
      options.encrypted));
  SHOAL_ASSIGN_OR_RETURN(run.weights, reader.ReadWeights());
  return run;
}

ClusterRun TrainToEnd(const plan::Job& job, const std::string& token_file,
                      const ClusterOptions& options) {
  std::filesystem::remove_all(job.checkpoint.directory);
  auto run = Train(job, token_file, options);
  EXPECT_TRUE(run.ok()) << run.status();
  if (!run.ok()) {
    return {};
  }
  EXPECT_TRUE(run->end.has_done()) << run->end.DebugString();
  EXPECT_EQ(run->steps.size(), static_cast<size_t>(job.train.steps));
  return *std::move(run);
}

}  // namespace shoal::testing
