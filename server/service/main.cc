// shoal-server: holds partitions of one job's model. It registers with the coordinator, does what
// it is told, and ends when the job is over, when its lease is lost, or on SIGTERM.
#include <unistd.h>

#include <csignal>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/synchronization/mutex.h"
#include "common/host_memory.h"
#include "common/lock_order.h"
#include "common/logging.h"
#include "common/metrics.h"
#include "common/status.h"
#include "proto/rpc/member_session.h"
#include "proto/rpc/parameter_server_service.h"
#include "proto/rpc/server.h"
#include "server/service/gpu_memory.h"
#include "server/service/parameter_service.h"
#include "transport/job_transport.h"
#include "transport/listen_flags.h"
#include "transport/rdma_flags.h"
#include "transport/registry.h"

namespace shoal::server {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string coordinator;
  std::string token_file;
  std::string log_level = "info";
  int index = -1;
  int metrics_port = -1;
  int threads = 0;
  int gpu = -1;
  int64_t max_clients = 1024;
  transport::ListenFlags listen;
  transport::RdmaFlags rdma;
};

// The signals that main waits for; SIGUSR1 is this process telling itself that the session is over.
const sigset_t& Signals() {
  static const sigset_t signals = [] {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
      sigaddset(&set, signal);
    }
    return set;
  }();
  return signals;
}

// How the membership ended, told by the session's thread.
class SessionEnd {
 public:
  void Set(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      status_ = status;
    }
    kill(getpid(), SIGUSR1);
  }
  absl::Status Get() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<TransportFactory> Transports(const Flags& flags) {
  const transport::TransportOptions options = flags.listen.MakeTransportOptions();
  // A port that was asked for is taken at once: one in use is not to come out when there is a job.
  auto tcp = std::make_shared<std::unique_ptr<transport::Transport>>();
  if (flags.listen.data_port != 0) {
    auto created = transport::CreateTransport("tcp", options);
    if (!created.ok()) {
      return Annotate(created.status(), fmt::format("--data-port {}", flags.listen.data_port));
    }
    *tcp = *std::move(created);
  }
  return [options, tcp, rdma = flags.rdma](const std::string& name, const plan::Job& job,
                                           int64_t registered_bytes) {
    if (*tcp != nullptr && name == (*tcp)->name()) {
      return absl::StatusOr<std::unique_ptr<transport::Transport>>(std::move(*tcp));
    }
    transport::TransportOptions for_job = options;
    for_job.gpu_job = transport::IsGpuJob(job);
    return transport::CreateJobTransport(name, job.service, rdma, for_job, registered_bytes);
  };
}

// Sets `started` once all that the flags ask for was to be had: a failure before is the caller's.
absl::Status Serve(const Flags& flags, bool& started) {
  SHOAL_ASSIGN_OR_RETURN(const rpc::Token token, rpc::LoadToken(flags.token_file));
  Metrics metrics;
  if (flags.metrics_port >= 0) {
    SHOAL_ASSIGN_OR_RETURN(const int port, metrics.Serve(flags.metrics_port));
    LogInfo("metrics on port {}", port);
  }
  SHOAL_ASSIGN_OR_RETURN(TransportFactory transports, Transports(flags));
  ParameterService service({.create_transport = std::move(transports),
                            .make_gpu_state = MakeGpuStates(flags.gpu),
                            .threads = flags.threads,
                            .max_clients = flags.max_clients,
                            .available_memory = AvailableMemory},
                           &metrics);
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeParameterServerService(&service));
  SHOAL_ASSIGN_OR_RETURN(
      const std::unique_ptr<rpc::Server> server,
      rpc::Server::Start({.listen = flags.listen.listen, .token = token}, std::move(services)));
  const std::string address = flags.listen.AdvertisedAddress(server->port());
  LogInfo("listening on {}, reached at {}", flags.listen.listen, address);
  started = true;

  SessionEnd end;
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::MemberSession> session,
                         rpc::MemberSession::Join(
                             rpc::Channel::Create(flags.coordinator, token, "coordinator"),
                             {.role = proto::ROLE_SERVER, .address = address, .index = flags.index},
                             [&end](const absl::Status& status) { end.Set(status); }));
  NameProcess(fmt::format("server-{}", session->index()));
  LogInfo("registered with the coordinator at {}", flags.coordinator);

  int signal = 0;
  sigwait(&Signals(), &signal);
  if (signal != SIGUSR1) {
    LogInfo("{}: leaving", signal == SIGTERM ? "SIGTERM" : "SIGINT");
    session->Leave(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }
  server->SetServing(false);
  service.Stop();
  server->Shutdown(absl::Seconds(1));
  SHOAL_RETURN_IF_ERROR(end.Get());
  LogInfo("ended");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  StopCheckingLockOrder();
  Flags flags;
  CLI::App app(
      "A parameter server of a Shoal job. Example:\n"
      "  shoal-server --coordinator 10.0.0.1:4000 --listen 0.0.0.0:4001 --advertise 10.0.0.2:4001 "
      "--token-file token");
  app.add_option("--coordinator", flags.coordinator, "HOST:PORT of the job's coordinator")
      ->required();
  transport::AddListenFlags(app, flags.listen);
  transport::AddRdmaFlags(app, flags.rdma);
  app.add_option(
      "--token-file", flags.token_file,
      std::string(
          "File with the token that all calls carry; without it, the environment variable ") +
          rpc::kTokenVariable);
  app.add_option(
         "--index", flags.index,
         "Its number among the job's servers, which names it in logs and `shoal status`; without "
         "it, the lowest that is free")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--metrics-port", flags.metrics_port,
                 "Port of the Prometheus metrics; 0 picks a free one");
  app.add_option("--threads", flags.threads,
                 "Threads that accumulate and update; 0: as the job says")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  app.add_option("--gpu", flags.gpu,
                 "GPU that partitions lie in with service.memory cuda; -1: servers take turns over "
                 "those that this process sees")
      ->capture_default_str()
      ->check(CLI::Range(-1, 1023));
  app.add_option("--max-clients", flags.max_clients, "Connections at once")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.set_version_flag("--version", std::string("shoal-server ") + rpc::ProgramVersion());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  InitLogging({.process = "server", .level = flags.log_level});
  if (const absl::Status valid = transport::Validate(flags.listen); !valid.ok()) {
    LogError("{}", Message(valid));
    return kExitUsage;
  }
  // Before any thread is started, so that all inherit it.
  pthread_sigmask(SIG_BLOCK, &Signals(), nullptr);
  bool started = false;
  const absl::Status status = Serve(flags, started);
  if (!status.ok()) {
    LogError("{}", Message(status));
    return started ? kExitFailure : kExitUsage;
  }
  return 0;
}

}  // namespace
}  // namespace shoal::server

int main(int argc, char** argv) { return shoal::server::Main(argc, argv); }
