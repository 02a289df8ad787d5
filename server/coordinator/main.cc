// shoal-coordinator: waits for servers and workers, runs the submitted job, and exits when it is
// over; with --stay, runs job after job. SIGTERM ends it, after a checkpoint.
#include <malloc.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/flag_checks.h"
#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "core/base/net/descriptors.h"
#include "core/base/status.h"
#include "core/base/threads/lock_order.h"
#include "core/base/threads/signal_thread.h"
#include "core/rpc/health.h"
#include "core/rpc/member_session.h"
#include "core/rpc/program_flags.h"
#include "core/rpc/server.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/grpc_server_client.h"
#include "server/coordinator/job/job_loader.h"
#include "server/coordinator/members/metrics_targets.h"
#ifdef SHOAL_CRASH_POINTS
#include "server/coordinator/testing/crash_point.h"
#endif

namespace shoal::server {
namespace {

constexpr int kThreadsForOthers = 512;  // beside members: command lines, retries

struct Flags {
  rpc::ProgramFlags program;
  std::string listen = "127.0.0.1:0";
  std::string port_file;
  std::string state;
  double lease_seconds = 10;
  bool stay = false;
};

// Returns the exit code. An error: it could not be started like this.
absl::StatusOr<int> Serve(const Flags& flags) {
  Metrics metrics;
  SHOAL_ASSIGN_OR_RETURN(const rpc::Security security,
                         rpc::LoadSecurity(flags.program, rpc::Role::kCoordinator, metrics));
  SHOAL_RETURN_IF_ERROR(rpc::ServeMetrics(flags.program, flags.listen, metrics).status());
  std::unique_ptr<StateStore> store = MakeMemoryStateStore();
  if (!flags.state.empty()) {
    SHOAL_ASSIGN_OR_RETURN(store, OpenSqliteStateStore(flags.state));
  }
  CoordinatorOptions options = {.version = rpc::ProgramVersion(),
                                .lease = absl::Seconds(flags.lease_seconds),
                                .stay = flags.stay,
                                .durable = !flags.state.empty(),
                                .encrypted = security.encrypted()};
#ifdef SHOAL_CRASH_POINTS
  options.reached = testing::CrashPointOfEnvironment();
#endif
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Coordinator> coordinator,
                         Coordinator::Create(options, LoadJob, MakeGrpcServerClients(security),
                                             std::move(store), RealClock(), metrics));
  const Metrics::Page targets(metrics, "/targets", [&coordinator] {
    return MetricsTargets(coordinator->GetStatus({}).value_or(proto::GetStatusReply()));
  });
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeCoordinatorService(coordinator.get()));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> server,
                         rpc::Server::Start({.listen = flags.listen,
                                             .security = security,
                                             .max_threads = kMaxMembers + kThreadsForOthers},
                                            std::move(services)));
  LogInfo("listening on {} (port {})", flags.listen, server->port());
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Health> health,
                         rpc::Health::Serve(flags.program.health_port, flags.listen));
  health->SetReady(true);
  if (!flags.port_file.empty()) {
    SHOAL_RETURN_IF_ERROR(
        WriteFileAtomically(flags.port_file, fmt::format("{}\n", server->port())));
  }
  {
    // The first signal ends the job with a checkpoint, the second ends the process at once.
    const SignalThread signals([&coordinator](const std::string& signal, bool first) {
      if (!first) {
        LogWarning("second signal: ending without waiting for the job");
        _exit(rpc::kExitFailure);
      }
      coordinator->Interrupt(signal);
    });
    coordinator->WaitUntilDone();
  }
  health->SetReady(false);
  coordinator->Stop();
  server->Shutdown(absl::Seconds(1));
  if (const absl::Status why = coordinator->superseded(); !why.ok()) {
    LogError("{}", Message(why));
    return rpc::kExitFailure;
  }
  LogInfo("ended");
  return 0;
}

int Main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 2);  // a heap for each of many threads grows with every job
  StopCheckingLockOrder();
  RaiseDescriptorLimit();
  Flags flags;
  CLI::App app(
      "The coordinator of a Shoal job. Example:\n"
      "  shoal-coordinator --listen 0.0.0.0:4000 --state coordinator.db --token-file token");
  app.add_option("--listen", flags.listen, "HOST:PORT of the service; port 0 picks a free one")
      ->capture_default_str();
  app.add_option("--port-file", flags.port_file,
                 "File to write the port to, once the service answers");
  app.add_option("--state", flags.state,
                 "File for the durable record of the job; without it there is none");
  app.add_option("--lease-seconds", flags.lease_seconds,
                 "Lease of members until a job says its own")
      ->capture_default_str()
      ->check(AtLeast(0.1));
  app.add_flag("--stay", flags.stay, "Run job after job; others queue up meanwhile");
  rpc::AddProgramFlags(app, "shoal-coordinator", flags.program);
  if (const std::optional<int> over = rpc::ParseCommandLine(app, argc, argv); over.has_value()) {
    return *over;
  }
  InitLogging(rpc::LogOptionsOf("coordinator", flags.program));
  SignalThread::Block();
  const absl::StatusOr<int> code = Serve(flags);
  if (!code.ok()) {
    LogError("{}", Message(code.status()));
    return rpc::kExitUsage;  // addresses, ports, files, token
  }
  return *code;
}

}  // namespace
}  // namespace shoal::server

int main(int argc, char** argv) { return shoal::server::Main(argc, argv); }
