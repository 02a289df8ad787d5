// shoal-coordinator: waits for servers and workers, runs the submitted job, and exits when it is
// over; with --stay, runs job after job. SIGTERM ends it, after a checkpoint.
//
// With its state in etcd it stands by while another leads. One that leads no more starts itself
// anew, as if it had been killed: what it had begun is the next leader's.
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/synchronization/notification.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/flag_checks.h"
#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "core/base/net/address.h"
#include "core/base/net/address_flag.h"
#include "core/base/net/descriptors.h"
#include "core/base/status.h"
#include "core/base/threads/lock_order.h"
#include "core/base/threads/signal_thread.h"
#include "core/rpc/health.h"
#include "core/rpc/member_session.h"
#include "core/rpc/program_flags.h"
#include "core/rpc/server.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/files/job_loader.h"
#include "server/coordinator/grpc_server_client.h"
#include "server/coordinator/heap.h"
#include "server/coordinator/members/metrics_targets.h"
#include "server/coordinator/standby_service.h"
#include "server/coordinator/state/etcd_state_store.h"
#ifdef SHOAL_CRASH_POINTS
#include "core/base/testing/crash_point.h"
#endif

namespace shoal::server {
namespace {

constexpr int kThreadsForOthers = 512;  // beside members: command lines, retries
constexpr absl::Duration kBetweenLooks = absl::Seconds(1);  // of one that stands by

struct Flags {
  rpc::ProgramFlags program;
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  std::string port_file;
  std::string state;
  std::string etcd_tls;
  double lease_seconds = 10;
  bool stay = false;
};

struct Process {
  char** command = nullptr;         // that it was started with
  std::atomic<bool> ending{false};  // by a signal, or its work is done
};

// Without a word to anybody: whoever leads next asks servers where they are.
[[noreturn]] void LeadNoMore(const Process& process, const absl::Status& why) {
  if (process.ending) {
    LogError("this coordinator leads no more, and ends: {}", Message(why));
  } else {
    LogError("this coordinator leads no more, and stands by: {}", Message(why));
    execv("/proc/self/exe", process.command);
  }
  _exit(rpc::kExitFailure);
}

struct Port {
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<rpc::Health> health;
};

absl::Status Listen(const Flags& flags, const rpc::Security& security, StandbyService& service,
                    Port& port) {
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeCoordinatorService(&service));
  SHOAL_ASSIGN_OR_RETURN(port.server,
                         rpc::Server::Start({.listen = flags.listen,
                                             .security = security,
                                             .max_threads = kMaxMembers + kThreadsForOthers},
                                            std::move(services)));
  LogInfo("listening on {} (port {})", flags.listen, port.server->port());
  SHOAL_ASSIGN_OR_RETURN(port.health, rpc::Health::Serve(flags.program.health_port, flags.listen));
  port.health->SetLeads(false);
  port.health->SetReady(true);
  return flags.port_file.empty()
             ? absl::OkStatus()
             : WriteFileAtomically(flags.port_file, fmt::format("{}\n", port.server->port()));
}

// Where others reach it.
std::string AdvertisedAddress(const Flags& flags, int port) {
  if (!flags.advertise.empty()) {
    return flags.advertise;
  }
  const std::string host = HostOf(flags.listen);
  return fmt::format("{}:{}", host == "0.0.0.0" || host == "[::]" ? rpc::HostName() : host, port);
}

// What asking again does not mend: the state, or who may reach it.
bool IsForGood(const absl::Status& error) {
  return absl::IsFailedPrecondition(error) || absl::IsDataLoss(error) ||
         absl::IsUnauthenticated(error) || absl::IsPermissionDenied(error) ||
         absl::IsInvalidArgument(error);
}

// Blocks until this coordinator leads, or `stop`.
absl::StatusOr<std::unique_ptr<StateStore>> AwaitLead(EtcdCandidate& candidate,
                                                      StandbyService& service,
                                                      const absl::Notification& stop) {
  std::string told;
  do {
    auto led = candidate.Try();
    const bool leads = led.ok() && *led != nullptr;
    service.SetLeader(led.ok() && !leads ? candidate.leader() : "");
    if (leads || (!led.ok() && IsForGood(led.status()))) {
      return led;
    }
    const std::string news =
        led.ok() ? fmt::format("stands by: {} leads", candidate.leader())
                 : fmt::format("{}; stands by, and asks again", Message(led.status()));
    if ((!led.ok() || !candidate.leader().empty()) && std::exchange(told, news) != news) {
      led.ok() ? LogInfo("{}", news) : LogWarning("{}", news);
    }
  } while (!stop.WaitForNotificationWithTimeout(kBetweenLooks));
  return nullptr;
}

// Blocks until this coordinator leads; null: a signal came first.
absl::StatusOr<std::unique_ptr<StateStore>> StandBy(const EtcdAddress& etcd,
                                                    const rpc::Security& to_etcd,
                                                    const std::string& address,
                                                    StandbyService& service, Process& process) {
  EtcdCandidate candidate(
      {.at = etcd,
       .security = to_etcd,
       .address = address,
       .lost = [&process](const absl::Status& why) { LeadNoMore(process, why); }});
  absl::Notification stop;
  absl::StatusOr<std::unique_ptr<StateStore>> led;
  {
    const SignalThread signals([&](const std::string& /*signal*/, bool first) {
      process.ending = true;
      first ? stop.Notify() : _exit(rpc::kExitFailure);
    });
    led = AwaitLead(candidate, service, stop);
  }
  if (stop.HasBeenNotified()) {
    return nullptr;  // and a lead goes back
  }
  return led;
}

absl::StatusOr<std::unique_ptr<StateStore>> OpenOwnState(const std::string& file) {
  return file.empty() ? MakeMemoryStateStore() : OpenSqliteStateStore(file);
}

// Until it is over, or a signal and its checkpoint.
void Run(Coordinator& coordinator, Process& process) {
  // The first signal ends the job with a checkpoint, the second ends the process at once.
  const SignalThread signals([&](const std::string& signal, bool first) {
    process.ending = true;
    if (!first) {
      LogWarning("second signal: ending without waiting for the job");
      _exit(rpc::kExitFailure);
    }
    coordinator.Interrupt(signal);
  });
  coordinator.WaitUntilDone();
  if (coordinator.superseded().ok()) {
    process.ending = true;
  }
}

absl::StatusOr<rpc::Security> SecurityOfEtcd(const Flags& flags, bool has_etcd) {
  if (flags.etcd_tls.empty()) {
    return rpc::Security();
  }
  if (!has_etcd) {
    return InvalidArgument("--etcd-tls: is of --state etcd://HOST:PORT/NAME, which is not given");
  }
  auto security = rpc::Security::ForOthers(flags.etcd_tls);
  return security.ok() ? security : Annotate(security.status(), "--etcd-tls");
}

// Returns the exit code. An error: it could not be started like this.
absl::StatusOr<int> Serve(const Flags& flags, Process& process) {
  Metrics metrics;
  Metrics::Gauge& leads =
      metrics.gauge("shoal_coordinator_leads", "1: this coordinator leads, 0: it stands by.");
  SHOAL_ASSIGN_OR_RETURN(const rpc::Security security,
                         rpc::LoadSecurity(flags.program, rpc::Role::kCoordinator, metrics));
  SHOAL_RETURN_IF_ERROR(rpc::ServeMetrics(flags.program, flags.listen, metrics).status());
  SHOAL_ASSIGN_OR_RETURN(const auto etcd, ParseEtcdUrl(flags.state));
  SHOAL_ASSIGN_OR_RETURN(const rpc::Security to_etcd, SecurityOfEtcd(flags, etcd.has_value()));
  StandbyService service;
  std::unique_ptr<Coordinator> coordinator;  // outlives the port
  Port port;
  if (etcd.has_value()) {  // who stands by says so
    SHOAL_RETURN_IF_ERROR(Listen(flags, security, service, port));
  }
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<StateStore> store,
      etcd.has_value()
          ? StandBy(*etcd, to_etcd, AdvertisedAddress(flags, port.server->port()), service, process)
          : OpenOwnState(flags.state));
  if (store == nullptr) {
    LogInfo("ended");
    return 0;
  }
  CoordinatorOptions options = {.version = rpc::ProgramVersion(),
                                .lease = absl::Seconds(flags.lease_seconds),
                                .stay = flags.stay,
                                .durable = !flags.state.empty(),
                                .encrypted = security.encrypted()};
#ifdef SHOAL_CRASH_POINTS
  options.reached = CrashPointOfEnvironment();
#endif
  SHOAL_ASSIGN_OR_RETURN(coordinator,
                         Coordinator::Create(options, LoadJob, MakeGrpcServerClients(security),
                                             std::move(store), RealClock(), metrics));
  const Metrics::Page targets(metrics, "/targets", [&coordinator] {
    return MetricsTargets(coordinator->GetStatus({}).value_or(proto::GetStatusReply()));
  });
  service.Lead(coordinator.get());
  if (etcd.has_value()) {
    LogInfo("leads, by {}", flags.state);
  } else {
    SHOAL_RETURN_IF_ERROR(Listen(flags, security, service, port));
  }
  port.health->SetLeads(true);
  leads.Set(1);
  Run(*coordinator, process);
  port.health->SetReady(false);
  port.health->SetLeads(false);
  leads.Set(0);
  coordinator->Stop();
  port.server->Shutdown(absl::Seconds(1));
  if (const absl::Status why = coordinator->superseded(); !why.ok()) {
    if (etcd.has_value()) {
      LeadNoMore(process, why);
    }
    LogError("{}", Message(why));
    return rpc::kExitFailure;
  }
  LogInfo("ended");
  return 0;
}

int Main(int argc, char** argv) {
  SetUpHeap();
  StopCheckingLockOrder();
  RaiseDescriptorLimit();
  Flags flags;
  Process process = {.command = argv};
  CLI::App app(
      "The coordinator of a Shoal job. Example:\n"
      "  shoal-coordinator --listen 0.0.0.0:4000 --state coordinator.db --token-file token");
  app.add_option("--listen", flags.listen, "HOST:PORT of the service; port 0 picks a free one")
      ->capture_default_str();
  app.add_option("--port-file", flags.port_file,
                 "File to write the port to, once the service answers");
  app.add_option("--advertise", flags.advertise,
                 "HOST:PORT that others are told who ask one that stands by; without it that of "
                 "--listen, or this host's name")
      ->check(HostsAndPorts());
  app.add_option(
      "--state", flags.state,
      "File for the durable record of the job, or for several coordinators that stand "
      "by for each other etcd://HOST:PORT[,HOST:PORT...]/NAME; without it there is none");
  app.add_option("--etcd-tls", flags.etcd_tls,
                 "Folder with ca.crt, of the CA of etcd's certificates, and with tls.crt and "
                 "tls.key, which etcd is shown; without it etcd is spoken to in plain text");
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
  const absl::StatusOr<int> code = Serve(flags, process);
  if (!code.ok()) {
    LogError("{}", Message(code.status()));
    return rpc::kExitUsage;  // addresses, ports, files, token
  }
  return *code;
}

}  // namespace
}  // namespace shoal::server

int main(int argc, char** argv) { return shoal::server::Main(argc, argv); }
