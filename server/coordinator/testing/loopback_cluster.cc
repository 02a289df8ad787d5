#include "server/coordinator/testing/loopback_cluster.h"

#include <atomic>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/member_session.h"
#include "core/rpc/parameter_server_service.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/grpc_server_client.h"
#include "server/coordinator/testing/empty_server.h"
#include "server/coordinator/testing/fake_job.h"

namespace shoal::server::testing {
namespace {

class Cluster {
 public:
  explicit Cluster(const LoopbackOptions& options) : options_(options) {}

  absl::StatusOr<LoopbackResult> Run();

 private:
  absl::Status Start();
  absl::Status StartServer();
  absl::Status RunWorker();
  absl::Status Watch(LoopbackResult& result);
  std::shared_ptr<rpc::Channel> Connect() {
    return rpc::Channel::Create(target_, token_, rpc::Role::kCoordinator);
  }

  const LoopbackOptions options_;
  const rpc::Token token_ = rpc::Token::Generate();
  FakeDisk disk_;
  Metrics metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<rpc::Server> coordinator_server_;
  std::string target_;
  std::vector<std::unique_ptr<EmptyServer>> services_;
  std::vector<std::unique_ptr<rpc::Server>> servers_;
  std::vector<std::unique_ptr<rpc::MemberSession>> sessions_;
};

absl::Status Cluster::Start() {
  std::unique_ptr<StateStore> store = MakeMemoryStateStore();
  if (!options_.state_file.empty()) {
    SHOAL_ASSIGN_OR_RETURN(store, OpenSqliteStateStore(options_.state_file));
  }
  SHOAL_ASSIGN_OR_RETURN(
      coordinator_, Coordinator::Create(
                        {.version = rpc::ProgramVersion()},
                        [this](const proto::SubmitJobRequest&, int64_t) {
                          return MakeFakeJob({.steps = options_.steps,
                                              .servers = options_.servers,
                                              .workers = options_.workers,
                                              .samples = options_.samples},
                                             disk_);
                        },
                        MakeGrpcServerClients(token_), std::move(store), RealClock(), metrics_));
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeCoordinatorService(coordinator_.get()));
  SHOAL_ASSIGN_OR_RETURN(coordinator_server_,
                         rpc::Server::Start({.security = token_}, std::move(services)));
  target_ = fmt::format("127.0.0.1:{}", coordinator_server_->port());
  for (int server = 0; server < options_.servers; ++server) {
    SHOAL_RETURN_IF_ERROR(StartServer());
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartServer() {
  services_.push_back(std::make_unique<EmptyServer>(disk_));
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeParameterServerService(services_.back().get()));
  SHOAL_ASSIGN_OR_RETURN(auto server,
                         rpc::Server::Start({.security = token_}, std::move(services)));
  SHOAL_ASSIGN_OR_RETURN(auto session, rpc::MemberSession::Join(
                                           Connect(),
                                           {.role = proto::ROLE_SERVER,
                                            .address = fmt::format("127.0.0.1:{}", server->port())},
                                           [](const absl::Status&) {}));
  servers_.push_back(std::move(server));
  sessions_.push_back(std::move(session));
  return absl::OkStatus();
}

absl::Status Cluster::RunWorker() {
  SHOAL_ASSIGN_OR_RETURN(const auto session,
                         rpc::MemberSession::Join(Connect(), {.role = proto::ROLE_WORKER},
                                                  [](const absl::Status&) {}));
  const std::shared_ptr<rpc::Channel> coordinator = Connect();
  constexpr double kWaitSeconds = 5;
  const rpc::CallOptions patient = {.deadline = absl::Seconds(kWaitSeconds + 10)};
  proto::JoinJobRequest join;
  join.set_incarnation(session->incarnation());
  join.set_wait_seconds(kWaitSeconds);
  proto::NextStepRequest next;
  for (bool ready = false; !ready;) {
    SHOAL_ASSIGN_OR_RETURN(const proto::JoinJobReply reply,
                           coordinator->Call(&rpc::CoordinatorService::JoinJob, join, patient));
    if (reply.shut_down()) {
      return absl::OkStatus();
    }
    ready = reply.ready();
    next.set_job_id(reply.job_id());
  }
  next.set_incarnation(session->incarnation());
  next.set_wait_seconds(kWaitSeconds);
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const proto::NextStepReply reply,
                           coordinator->Call(&rpc::CoordinatorService::NextStep, next, patient));
    if (reply.job_over()) {
      return absl::OkStatus();
    }
    if (!reply.has_work()) {
      continue;
    }
    proto::FinishedReport report;
    report.set_step(reply.work().step());
    report.set_attempt(reply.work().attempt());
    for (const auto& service : services_) {
      for (int i = 0; i < reply.work().microbatches_size(); ++i) {
        service->Push();
      }
    }
    for (const proto::MicrobatchWork& microbatch : reply.work().microbatches()) {
      *report.add_packs() = FakeSteps::Run(microbatch);
    }
    *next.mutable_finished() = report;
  }
}

absl::Status Cluster::Watch(LoopbackResult& result) {
  const std::shared_ptr<rpc::Channel> coordinator = Connect();
  SHOAL_ASSIGN_OR_RETURN(const proto::SubmitJobReply submitted,
                         coordinator->Call(&rpc::CoordinatorService::SubmitJob, {}));
  proto::WatchJobRequest watch;
  watch.set_job_id(submitted.job_id());
  absl::Time last = absl::InfinitePast();
  return coordinator->Watch(
      &rpc::CoordinatorService::WatchJob, watch,
      [&](const proto::JobEvent& event) {
        result.events.push_back(event);
        if (event.has_step()) {
          const absl::Time now = absl::Now();
          if (last != absl::InfinitePast()) {
            result.step_seconds.push_back(absl::ToDoubleSeconds(now - last));
          }
          last = now;
          if (event.step().step() == options_.stop_after) {
            static_cast<void>(coordinator->Call(&rpc::CoordinatorService::StopJob, {}));
          }
        }
        return true;
      },
      {.deadline = absl::Minutes(5)});
}

absl::StatusOr<LoopbackResult> Cluster::Run() {
  SHOAL_RETURN_IF_ERROR(Start());
  LoopbackResult result;
  std::atomic<int> errors = 0;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < options_.workers; ++worker) {
    workers.emplace_back([&] { errors += RunWorker().ok() ? 0 : 1; });
  }
  const absl::Status watched = Watch(result);
  if (!watched.ok()) {
    coordinator_->Stop();  // so that the workers end
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  for (const auto& session : sessions_) {
    session->Leave("");
  }
  if (watched.ok()) {
    coordinator_->WaitUntilDone();
  }
  coordinator_->Stop();
  coordinator_server_->Shutdown(absl::Seconds(1));
  for (const auto& server : servers_) {
    server->Shutdown(absl::ZeroDuration());
  }
  SHOAL_RETURN_IF_ERROR(watched);
  result.metrics = metrics_.Text();
  result.worker_errors = errors;
  return result;
}

}  // namespace

absl::StatusOr<LoopbackResult> RunLoopback(const LoopbackOptions& options) {
  return Cluster(options).Run();
}

}  // namespace shoal::server::testing
