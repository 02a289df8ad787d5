// shoal-server: holds partitions of models. Registers with the coordinator, follows its commands,
// and exits when the job ends, when its lease is lost, or on SIGTERM, once others have what it
// holds.
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/flag_checks.h"
#include "core/base/logging.h"
#include "core/base/memory/host_memory.h"
#include "core/base/metrics.h"
#include "core/base/net/descriptors.h"
#include "core/base/status.h"
#include "core/base/threads/lock_order.h"
#include "core/base/threads/signal_thread.h"
#include "core/base/threads/steady_await.h"
#include "core/rpc/health.h"
#include "core/rpc/member_session.h"
#include "core/rpc/parameter_server_service.h"
#include "core/rpc/program_flags.h"
#include "core/rpc/server.h"
#include "core/transport/listen_flags.h"
#include "core/transport/rdma_flags.h"
#include "core/transport/registry/job_transport.h"
#include "core/transport/registry/registry.h"
#include "server/service/gpu_memory.h"
#include "server/service/moves/server_calls.h"
#include "server/service/parameter_service.h"
#ifdef SHOAL_CRASH_POINTS
#include "core/base/testing/crash_point.h"
#endif

namespace shoal::server {
namespace {

struct Flags {
  rpc::ProgramFlags program;
  rpc::MemberFlags member;
  int threads = 0;
  int gpu = -1;
  int64_t max_clients = 1024;
  transport::ListenFlags listen;
  transport::RdmaFlags rdma;
};

// How often a server that is to leave asks whether it may.
constexpr absl::Duration kBetweenAsks = absl::Milliseconds(200);
// How long it goes on asking a coordinator that does not answer.
constexpr absl::Duration kAskPatience = absl::Seconds(10);
// A second signal that comes sooner is taken for the same one.
constexpr absl::Duration kSecondCountsAfter = absl::Seconds(2);

// The end of the process: the session's thread reports the end of membership, or a signal comes.
class End {
 public:
  void Membership(const absl::Status& how) {
    absl::MutexLock lock(&mutex_);
    membership_ = how;
    over_ = true;
  }
  // Another membership begins.
  void Again() {
    absl::MutexLock lock(&mutex_);
    membership_ = absl::OkStatus();
    over_ = !signal_.empty();
  }
  void Signal(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = RealClock().Now();
    if (signal_.empty()) {
      signal_ = name;
      signalled_at_ = now;
      over_ = true;
    } else if (now - signalled_at_ >= kSecondCountsAfter) {
      at_once_ = true;
    }
  }
  // Blocks until the end. Returns the signal's name; empty: membership ended.
  std::string Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&over_));  // bounded by the lease
    return signal_;
  }
  bool signalled() const {
    absl::MutexLock lock(&mutex_);
    return !signal_.empty();
  }
  // Waits for a second signal; true: it came.
  bool AwaitSecond(absl::Duration limit) {
    absl::MutexLock lock(&mutex_);
    return AwaitFor(&mutex_, absl::Condition(&at_once_), limit);
  }
  // How membership ended; OK before that.
  absl::Status membership() const {
    absl::MutexLock lock(&mutex_);
    return membership_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool at_once_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time signalled_at_ ABSL_GUARDED_BY(mutex_);
  std::string signal_ ABSL_GUARDED_BY(mutex_);
  absl::Status membership_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<TransportFactory> Transports(const Flags& flags, bool encrypted) {
  transport::TransportOptions options = flags.listen.MakeTransportOptions();
  options.encrypt = encrypted;
  // Binds a given port at once: if it is in use, the start must fail, not the first job.
  auto tcp = std::make_shared<std::unique_ptr<transport::Transport>>();
  if (flags.listen.data_port != 0) {
    auto created = transport::CreateTransport("tcp", options);
    if (!created.ok()) {
      return Annotate(created.status(), fmt::format("--data-port {}", flags.listen.data_port));
    }
    *tcp = *std::move(created);
  }
  return [options, tcp, rdma = flags.rdma](const std::string& name, const plan::Job& job,
                                           int64_t registered_bytes,
                                           std::shared_ptr<transport::GpuMemory> gpu_memory) {
    if (name == "tcp") {
      tcp->reset();  // the job's own takes the port
    }
    transport::TransportOptions for_job = options;
    for_job.gpu_job = transport::IsGpuJob(job);
    for_job.gpu_memory = std::move(gpu_memory);
    return transport::CreateJobTransport(name, job.service, rdma, for_job, registered_bytes);
  };
}

// Stays for its job until others, or a checkpoint, have what this server holds.
absl::Status LeaveOnceFree(rpc::MemberSession& session, const std::string& signal, End& end) {
  LogInfo("{}: leaving once no job needs this server; again after 2 s: at once", signal);
  absl::Time answered = RealClock().Now();
  while (end.membership().ok()) {
    const absl::StatusOr<bool> left = session.AskToLeave(signal);
    if (left.ok() && *left) {
      return absl::OkStatus();
    }
    answered = left.ok() ? RealClock().Now() : answered;
    if (RealClock().Now() - answered > kAskPatience) {
      LogWarning("the coordinator does not say whether this server is needed: {}",
                 Message(left.status()));
      return absl::OkStatus();
    }
    if (end.AwaitSecond(kBetweenAsks)) {
      return Unavailable("second {}: ending without a checkpoint of what this server holds",
                         signal);
    }
  }
  return absl::OkStatus();
}

// As MemberOptions has it; a machine that has none left is not one that does not say.
int64_t FreeMemory() {
  const absl::StatusOr<int64_t> available = AvailableMemory();
  return available.ok() ? std::max<int64_t>(1, *available) : 0;
}

// Registers, and blocks until membership ends or a signal comes. With --stay waits for the
// coordinator however long it takes.
absl::Status BeMember(const Flags& flags, const rpc::Security& security, const std::string& address,
                      int metrics_port, int index, const rpc::Token& command_token,
                      rpc::Health& health, End& end) {
  rpc::MemberOptions options = {.role = proto::ROLE_SERVER,
                                .address = address,
                                .index = index,
                                .takes_over = flags.member.index == rpc::kIndexAuto,
                                .stays = flags.member.stay,
                                .stop = [&end] { return end.signalled(); },
                                .free_memory_bytes = FreeMemory(),
                                .metrics_port = metrics_port,
                                .command_token = command_token};
  if (flags.member.stay) {
    options.patience = absl::InfiniteDuration();
  }
  auto session = rpc::MemberSession::Join(
      rpc::Channel::Create(flags.member.coordinator, security, rpc::Role::kCoordinator), options,
      [&end](const absl::Status& status) { end.Membership(status); });
  if (absl::IsCancelled(session.status())) {
    return absl::OkStatus();  // a signal came first
  }
  SHOAL_RETURN_IF_ERROR(session.status());
  NameProcess((*session)->index());
  LogInfo("registered with the coordinator at {}", flags.member.coordinator);
  health.SetReady(true);
  if (const std::string signal = end.Await(); !signal.empty()) {
    health.SetReady(false);
    const absl::Status left = LeaveOnceFree(**session, signal, end);
    (*session)->Leave(signal);
    if (!left.ok()) {
      LogError("{}", Message(left));
      _exit(rpc::kExitFailure);  // a disk that hangs would hold an orderly end up
    }
    return absl::OkStatus();
  }
  const absl::Status how = end.membership();
  if (flags.member.stay) {
    LogInfo("no longer a member: {}", how.ok() ? "the coordinator needs it no more" : Message(how));
  }
  return how;
}

// Sets `started` once everything that the flags ask for is available: earlier failures are the
// caller's mistake.
absl::Status Serve(const Flags& flags, bool& started) {
  Metrics metrics;
  SHOAL_ASSIGN_OR_RETURN(const rpc::Security security,
                         rpc::LoadSecurity(flags.program, rpc::Role::kServer, metrics));
  SHOAL_ASSIGN_OR_RETURN(const int index, rpc::IndexOf(flags.member, rpc::HostName()));
  SHOAL_ASSIGN_OR_RETURN(const int metrics_port,
                         rpc::ServeMetrics(flags.program, flags.listen.listen, metrics));
  SHOAL_ASSIGN_OR_RETURN(TransportFactory transports, Transports(flags, security.encrypted()));
  ParameterService service(
      {.create_transport = std::move(transports),
       .open_gpu = MakeGpuOpener(flags.gpu),
       .threads = flags.threads,
       .max_clients = flags.max_clients,
       .connect_server =
           [security](const std::string& address) { return CallsOfGiver(address, security); },
       .connect_backup =
           [security](const std::string& address) { return CallsOfBackup(address, security); },
#ifdef SHOAL_CRASH_POINTS
       .reached = CrashPointOfEnvironment(),
#endif
       .available_memory = AvailableMemory},
      &metrics);
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeParameterServerService(&service));
  const rpc::Token command_token = rpc::Token::Generate();
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> server,
                         rpc::Server::Start({.listen = flags.listen.listen,
                                             .security = security.WithCommandToken(command_token)},
                                            std::move(services)));
  const std::string address = flags.listen.AdvertisedAddress(server->port());
  LogInfo("listening on {}, reached at {}", flags.listen.listen, address);
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Health> health,
                         rpc::Health::Serve(flags.program.health_port, flags.listen.listen));
  started = true;

  End end;
  const SignalThread signals([&end](const std::string& name, bool) { end.Signal(name); });
  absl::Status membership;
  do {
    end.Again();
    membership =
        BeMember(flags, security, address, metrics_port, index, command_token, *health, end);
    health->SetReady(false);
    service.ReleaseAll();
  } while (flags.member.stay && !end.signalled() && !membership.ok() &&
           !rpc::IsRefusal(membership));
  service.Stop();
  server->Shutdown(absl::Seconds(1));
  SHOAL_RETURN_IF_ERROR(membership);
  LogInfo("ended");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  StopCheckingLockOrder();
  RaiseDescriptorLimit();
  Flags flags;
  CLI::App app(
      "A parameter server of a Shoal job. Example:\n"
      "  shoal-server --coordinator 10.0.0.1:4000 --listen 0.0.0.0:4001 --advertise 10.0.0.2:4001 "
      "--token-file token");
  rpc::AddMemberFlags(app, "servers", flags.member);
  transport::AddListenFlags(app, flags.listen);
  transport::AddRdmaFlags(app, flags.rdma);
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
      ->check(AtLeast(1));
  rpc::AddProgramFlags(app, "shoal-server", flags.program);
  if (const std::optional<int> over = rpc::ParseCommandLine(app, argc, argv); over.has_value()) {
    return *over;
  }
  InitLogging(rpc::LogOptionsOf("server", flags.program));
  if (const absl::Status valid = transport::Validate(flags.listen); !valid.ok()) {
    LogError("{}", Message(valid));
    return rpc::kExitUsage;
  }
  SignalThread::Block();
  bool started = false;
  const absl::Status status = Serve(flags, started);
  if (!status.ok()) {
    LogError("{}", Message(status));
    return started ? rpc::kExitFailure : rpc::kExitUsage;
  }
  return 0;
}

}  // namespace
}  // namespace shoal::server

int main(int argc, char** argv) { return shoal::server::Main(argc, argv); }
