// shoal-worker: runs the microbatches that the coordinator hands out, getting weights from the
// servers and pushing gradients to them, until the job is over.
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "client/grpc_server_client.h"
#include "core/base/clock.h"
#include "core/base/flag_checks.h"
#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "core/base/net/descriptors.h"
#include "core/base/status.h"
#include "core/base/threads/lock_order.h"
#include "core/base/threads/signal_thread.h"
#include "core/rpc/channel.h"
#include "core/rpc/grpc_support.h"
#include "core/rpc/health.h"
#include "core/rpc/member_session.h"
#include "core/rpc/program_flags.h"
#include "core/rpc/server.h"
#include "core/rpc/stage_service.h"
#include "core/transport/listen_flags.h"
#include "core/transport/rdma_flags.h"
#include "core/transport/testing/fault_transport.h"
#include "worker/backend/open/open_device.h"
#include "worker/job/device_flag.h"
#include "worker/job/trainer.h"
#include "worker/ops/cpu/instructions.h"

namespace shoal::worker {
namespace {

struct Flags {
  rpc::ProgramFlags program;
  rpc::MemberFlags member;
  int threads = 0;
  std::string device;
  int gpu_workers = 1;
  transport::ListenFlags listen;
  transport::RdmaFlags rdma;
  uint64_t fault_seed = 0;
  double fault_delay_ms = 5;
  double fault_drop_doorbells = 0;
  int64_t fault_break_after = 0;
};

// Gives each transport its own delays, the same for the same seed.
std::unique_ptr<transport::Transport> WithFaults(const Flags& flags, uint64_t worker,
                                                 std::unique_ptr<transport::Transport> transport) {
  if (flags.fault_seed == 0) {
    return transport;
  }
  return transport::MakeFaultTransport(std::move(transport),
                                       {.seed = flags.fault_seed * 1000 + worker,
                                        .delay_probability = 0.5,
                                        .max_delay = absl::Milliseconds(flags.fault_delay_ms),
                                        .reorder = true,
                                        .drop_doorbell_probability = flags.fault_drop_doorbells,
                                        .break_after_operations = flags.fault_break_after});
}

// Lets the trainer at hand leave on the first signal, and ends the process on the second, or where
// there is nothing to leave.
class Signals {
 public:
  explicit Signals(bool stays)
      : stays_(stays), thread_([this](const std::string& name, bool first) { On(name, first); }) {}

  // False: a signal came first.
  bool Begin(Trainer* trainer) {
    absl::MutexLock lock(&mutex_);
    trainer_ = trainer;
    return !stopped_;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    trainer_ = nullptr;
  }
  bool stopped() const {
    absl::MutexLock lock(&mutex_);
    return stopped_;
  }

 private:
  void On(const std::string& name, bool first) {
    absl::MutexLock lock(&mutex_);
    if (!first || (trainer_ == nullptr && !stays_)) {
      _exit(rpc::kExitFailure);
    }
    stopped_ = true;
    if (trainer_ != nullptr) {
      trainer_->Drain(Cancelled("{}", name));
    }
  }

  const bool stays_;
  mutable absl::Mutex mutex_;
  Trainer* trainer_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  SignalThread thread_;
};

// The model of the GPU that it computes on, where the job lets it; empty: none.
std::string GpuModel(const DeviceFlag& device) {
  const std::vector<int> usable =
      device.kind == plan::DeviceKind::kCpu ? std::vector<int>() : UsableGpus();
  if (usable.empty()) {
    return "";
  }
  const int number = device.kind == plan::DeviceKind::kCuda ? device.gpu : usable.front();
  const absl::StatusOr<gpu::GpuDescriptions> found = FindGpus();
  for (const gpu::GpuDescription& gpu : found.ok() ? found->gpus : decltype(found->gpus)()) {
    if (gpu.index == number) {
      return gpu.name;
    }
  }
  return "";
}

// Registers, and runs jobs until membership ends or a signal comes. With --stay waits for the
// coordinator however long it takes.
absl::Status BeMember(const Flags& flags, const rpc::Security& security, const DeviceFlag& device,
                      const std::string& address, int metrics_port, int index,
                      StageService& service, Metrics& metrics, rpc::Health& health,
                      Signals& signals, bool& left_job) {
  const auto new_channel = [&] {
    return rpc::Channel::Create(flags.member.coordinator, security, rpc::Role::kCoordinator);
  };
  Trainer trainer(new_channel(), metrics);
  rpc::MemberOptions member = {.role = proto::ROLE_WORKER,
                               .address = address,
                               .index = index,
                               .takes_over = flags.member.index == rpc::kIndexAuto,
                               .stays = flags.member.stay,
                               .stop = [&signals] { return signals.stopped(); },
                               .metrics_port = metrics_port,
                               .gpu = GpuModel(device)};
  if (device.kind != plan::DeviceKind::kCuda) {
    member.instructions = cpu::WidestInstructions();
  }
  if (flags.member.stay) {
    member.patience = absl::InfiniteDuration();
  }
  auto joined = rpc::MemberSession::Join(new_channel(), member,
                                         [&](const absl::Status& why) { trainer.Stop(why); });
  if (absl::IsCancelled(joined.status())) {
    return absl::OkStatus();  // a signal came first
  }
  SHOAL_RETURN_IF_ERROR(joined.status());
  rpc::MemberSession& session = **joined;
  const std::string name = fmt::format("worker-{}", session.index());
  NameProcess(session.index());
  LogInfo("registered with the coordinator at {}", flags.member.coordinator);
  health.SetReady(true);
  WorkerJobOptions options;
  options.name = name;
  options.index = session.index();
  options.incarnation = session.incarnation();
  options.threads = flags.threads;
  options.device = device;
  options.open_device = OpenDevice;
  options.rdma = flags.rdma;
  options.make_server_client = [&](const std::vector<std::string>& addresses) {
    return std::make_unique<client::GrpcServerClient>(addresses, security);
  };
  options.stage_service = &service;
  options.make_stage_client = [&](const WorkerGroup& group) {
    return MakeGrpcStageClient(group, security);
  };
  options.transports = flags.listen.MakeTransportOptions();
  options.transports.encrypt = security.encrypted();
  options.wrap_transport = [&](std::unique_ptr<transport::Transport> transport) {
    return WithFaults(flags, static_cast<uint64_t>(session.index()), std::move(transport));
  };
  const absl::Status status = signals.Begin(&trainer) ? trainer.Run(options, flags.member.stay)
                                                      : absl::CancelledError("told to leave");
  signals.End();
  left_job = trainer.left_a_job();
  session.Leave(status.ok() ? "" : std::string(Message(status)));
  return status;
}

// Sets `started` once everything that the flags ask for is available: earlier failures are the
// caller's mistake. And `left_job` where a signal took this worker from a job that goes on.
absl::Status Work(const Flags& flags, bool& started, bool& left_job) {
  rpc::StartGrpc();
  Metrics metrics;
  SHOAL_ASSIGN_OR_RETURN(const rpc::Security security,
                         rpc::LoadSecurity(flags.program, rpc::Role::kWorker, metrics));
  SHOAL_ASSIGN_OR_RETURN(const int index, rpc::IndexOf(flags.member, rpc::HostName()));
  SHOAL_ASSIGN_OR_RETURN(DeviceFlag device, ParseDeviceFlag(flags.device));
  device.sharing = flags.gpu_workers;
  SHOAL_ASSIGN_OR_RETURN(const int metrics_port,
                         rpc::ServeMetrics(flags.program, flags.listen.listen, metrics));
  // Takes calls of other stages; without a job it answers none.
  StageService service;
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeStageService(&service));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> server,
                         rpc::Server::Start({.listen = flags.listen.listen, .security = security},
                                            std::move(services)));
  const std::string address = flags.listen.AdvertisedAddress(server->port());
  LogInfo("listening on {}, reached at {}", flags.listen.listen, address);
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Health> health,
                         rpc::Health::Serve(flags.program.health_port, flags.listen.listen));
  started = true;
  Signals signals(flags.member.stay);
  absl::Status status;
  do {
    status = BeMember(flags, security, device, address, metrics_port, index, service, metrics,
                      *health, signals, left_job);
    health->SetReady(false);
    if (!status.ok() && flags.member.stay) {
      LogWarning("no longer a member: {}", Message(status));
    }
  } while (flags.member.stay && !signals.stopped() && !rpc::IsRefusal(status));
  service.Close(absl::CancelledError("this worker is leaving"));
  server->Shutdown(absl::Seconds(1));
  const bool told = flags.member.stay || absl::IsCancelled(status);  // by the signal
  return told && signals.stopped() ? absl::OkStatus() : status;
}

// If a process has more streams than hardware queues, some share one, and waiting work delays the
// rest: such as NCCL's, which waits for other workers. Respects a value that is set.
void AskForAllHardwareQueues() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

int Main(int argc, char** argv) {
  StopCheckingLockOrder();
  RaiseDescriptorLimit();
  AskForAllHardwareQueues();  // before CUDA or any thread starts
  Flags flags;
  CLI::App app(
      "A worker of a Shoal job. Example:\n"
      "  shoal-worker --coordinator head:4000 --token-file token");
  rpc::AddMemberFlags(app, "workers", flags.member);
  app.add_option("--threads", flags.threads, "Threads that compute; 0: by the job")
      ->capture_default_str()
      ->check(AtLeast(0));
  app.add_option("--device", flags.device,
                 "What to compute on: cpu, cuda or cuda:N (the GPU's number, from 0); without it, "
                 "by the job (train.device)");
  app.add_option("--gpu-workers", flags.gpu_workers,
                 "Workers that share its GPU: each has as much of its memory")
      ->capture_default_str()
      ->check(AtLeast(1));
  transport::AddListenFlags(app, flags.listen);
  transport::AddRdmaFlags(app, flags.rdma);
  rpc::AddProgramFlags(app, "shoal-worker", flags.program);
  // For tests of whole runs: help hides an empty group.
  app.add_option("--fault-seed", flags.fault_seed,
                 "Delays in the transport from this seed; 0: none")
      ->group("");
  app.add_option("--fault-delay-ms", flags.fault_delay_ms, "The longest of them")->group("");
  app.add_option("--fault-drop-doorbells", flags.fault_drop_doorbells, "Probability")->group("");
  app.add_option("--fault-break-after", flags.fault_break_after, "Operations per connection")
      ->group("");
  if (const std::optional<int> over = rpc::ParseCommandLine(app, argc, argv); over.has_value()) {
    return *over;
  }
  SignalThread::Block();
  InitLogging(rpc::LogOptionsOf("worker", flags.program));
  if (const absl::Status valid = transport::Validate(flags.listen); !valid.ok()) {
    LogError("{}", Message(valid));
    return rpc::kExitUsage;
  }
  bool started = false;
  bool left_job = false;
  if (const absl::Status status = Work(flags, started, left_job); !status.ok()) {
    LogError("{}", Message(status));
    return started ? rpc::kExitFailure : rpc::kExitUsage;
  }
  return left_job ? rpc::kExitLeftJob : 0;
}

}  // namespace
}  // namespace shoal::worker

int main(int argc, char** argv) { return shoal::worker::Main(argc, argv); }
