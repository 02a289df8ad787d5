#include "cli/launcher/launcher.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "cli/run/machine.h"
#include "cli/run/temporary_folder.h"
#include "core/base/file.h"
#include "core/base/metrics.h"
#include "core/base/status.h"
#include "core/plan/memory/gpu_turn.h"
#include "core/rpc/program_flags.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPortPoll = absl::Milliseconds(10);
constexpr int kTailLines = 12;
constexpr char kLoopback[] = "127.0.0.1";
constexpr char kFreePort[] = "127.0.0.1:0";

}  // namespace

absl::StatusOr<std::string> ProgramFolder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    return Internal("/proc/self/exe: {}", error.message());
  }
  return self.parent_path().string();
}

LocalClusterOptions ClusterOf(const plan::Job& job, int cores) {
  const int64_t servers = job.cluster.servers;
  const int64_t workers = job.cluster.workers;
  return {.servers = static_cast<int>(servers),
          .workers = static_cast<int>(workers),
          .threads_per_server = ThreadsPerProcess(cores, servers, job.service.threads_per_server),
          .threads_per_worker = ThreadsPerProcess(cores, workers, job.train.threads_per_worker),
          .start_timeout = absl::Seconds(job.cluster.start_timeout_seconds),
          .lease_seconds = job.cluster.lease_seconds};
}

LocalCluster::LocalCluster(LocalClusterOptions options, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      next_metrics_port_(options_.metrics_port),
      wanted_servers_(options_.servers),
      coordinator_(clock),
      servers_(clock),
      workers_(clock) {}

LocalCluster::~LocalCluster() = default;

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const LocalClusterOptions& options, Clock& clock) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(options.work_folder));
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options, clock));
  SHOAL_RETURN_IF_ERROR(cluster->StartCoordinator());
  SHOAL_ASSIGN_OR_RETURN(cluster->access_,
                         RunAccess::Publish(options.work_folder, cluster->address_, options.token));
  for (int i = 0; i < options.servers; ++i) {
    SHOAL_RETURN_IF_ERROR(cluster->StartServer(i));
  }
  for (int i = 0; i < options.workers; ++i) {
    SHOAL_RETURN_IF_ERROR(cluster->StartWorker(i));
  }
  return cluster;
}

// A number that it is given by its orchestrator is one that a later life takes over.
absl::Status LocalCluster::StartServer(int index) {
  return StartProgram(fmt::format("server-{}", index), "shoal-server",
                      {"--stay", "--coordinator", address_, "--index", "auto", "--threads",
                       std::to_string(options_.threads_per_server)},
                      options_.threads_per_server,
                      {{"JOB_COMPLETION_INDEX", std::to_string(index)}});
}

absl::Status LocalCluster::StartWorker(int index) {
  std::vector<std::string> arguments = {"--stay",
                                        "--coordinator",
                                        address_,
                                        "--index",
                                        "auto",
                                        "--threads",
                                        std::to_string(options_.threads_per_worker)};
  if (!options_.gpus.empty()) {
    const size_t gpus = options_.gpus.size();
    const size_t place = plan::PlaceInTurn(static_cast<size_t>(index), gpus);
    arguments.insert(
        arguments.end(),
        {"--device", fmt::format("cuda:{}", options_.gpus[place]), "--gpu-workers",
         std::to_string(plan::GpuTurn{.place = place, .gpus = gpus}.Share(options_.workers))});
  }
  if (options_.fault_seed != 0) {
    arguments.insert(arguments.end(), {"--fault-seed", std::to_string(options_.fault_seed)});
  }
  return StartProgram(fmt::format("worker-{}", index), "shoal-worker", std::move(arguments),
                      options_.threads_per_worker,
                      {{"JOB_COMPLETION_INDEX", std::to_string(index)}});
}

absl::Status LocalCluster::StartProgram(const std::string& name, const std::string& program,
                                        std::vector<std::string> arguments, int threads,
                                        std::map<std::string, std::string> environment) {
  const std::string path = options_.program_folder + "/" + program;
  if (access(path.c_str(), X_OK) != 0) {
    return NotFound("{}: no such program beside shoal; build all targets", path);
  }
  arguments.insert(arguments.begin(), path);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> metrics, MetricsFlags(name));
  arguments.insert(arguments.end(), metrics.begin(), metrics.end());
  if (!options_.tls.folder.empty()) {
    arguments.insert(arguments.end(),
                     {"--tls", options_.tls.folder, "--tls-domain", options_.tls.domain});
  }
  environment[rpc::kTokenVariable] = options_.token.secret();
  environment["OMP_NUM_THREADS"] = std::to_string(threads);
  Command& command = commands_[name];
  command = {.name = name,
             .arguments = std::move(arguments),
             .environment = std::move(environment),
             .log_file = fmt::format("{}/{}.log", options_.work_folder, name)};
  return GroupOf(name).Start(command);
}

ProcessGroup& LocalCluster::GroupOf(const std::string& name) {
  if (name == kCoordinator) {
    return coordinator_;
  }
  return name.starts_with("server") ? servers_ : workers_;
}

pid_t LocalCluster::PidOf(const std::string& name) const {
  return coordinator_.PidOf(name) + servers_.PidOf(name) + workers_.PidOf(name);  // in one of them
}

absl::Status LocalCluster::StartServers(int64_t servers) {
  wanted_servers_ = servers;
  for (int index = 0; static_cast<int64_t>(servers_.running()) < servers; ++index) {
    const std::string name = fmt::format("server-{}", index);
    if (servers_.PidOf(name) == 0) {
      SHOAL_RETURN_IF_ERROR(commands_.contains(name) ? StartAgain(name) : StartServer(index));
    }
  }
  return absl::OkStatus();
}

bool LocalCluster::IsSpare(const ChildEnd& end) const {
  return end.clean() && end.name.starts_with("server") &&
         static_cast<int64_t>(servers_.running()) >= wanted_servers_;
}

absl::Status LocalCluster::StartAgain(const std::string& name) {
  return GroupOf(name).Start(commands_.at(name));
}

absl::StatusOr<std::vector<std::string>> LocalCluster::MetricsFlags(const std::string& name) {
  if (options_.metrics_port < 0) {
    return std::vector<std::string>();
  }
  SHOAL_ASSIGN_OR_RETURN(const int port, FreeMetricsPort(next_metrics_port_, kLoopback));
  next_metrics_port_ += options_.metrics_port > 0 ? 1 : 0;
  metrics_ +=
      fmt::format("{}{} http://{}:{}/metrics", metrics_.empty() ? "" : ", ", name, kLoopback, port);
  return std::vector<std::string>{"--metrics-host", kLoopback, "--metrics-port",
                                  std::to_string(port)};
}

absl::Status LocalCluster::StartCoordinator() {
  const std::string port_file = options_.work_folder + "/coordinator.port";
  std::error_code error;
  fs::remove(port_file, error);
  for (const auto& entry :
       fs::directory_iterator(options_.work_folder, error)) {  // logs of an earlier run
    if (entry.path().extension() == ".log") {
      std::error_code ignored;
      fs::remove(entry.path(), ignored);
    }
  }
  SHOAL_ASSIGN_OR_RETURN(state_, TemporaryFolder::Create());
  SHOAL_RETURN_IF_ERROR(StartProgram(
      kCoordinator, "shoal-coordinator",
      {"--stay", "--state", state_->path() + "/coordinator.db", "--lease-seconds",
       fmt::format("{}", options_.lease_seconds), "--port-file", port_file, "--listen", kFreePort},
      1));
  SHOAL_RETURN_IF_ERROR(AwaitPort(port_file));
  std::ranges::replace(commands_.at(kCoordinator).arguments, kFreePort, address_);
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitPort(const std::string& port_file) {
  const absl::Time deadline = clock_.Now() + options_.start_timeout;
  while (clock_.Now() < deadline) {
    const auto text = ReadFile(port_file, 64);
    int port = 0;
    if (text.ok() &&
        std::from_chars(text->data(), text->data() + text->size(), port).ec == std::errc() &&
        port > 0) {
      address_ = fmt::format("127.0.0.1:{}", port);
      return absl::OkStatus();
    }
    SHOAL_RETURN_IF_ERROR(Check());
    if (coordinator_.running() == 0) {
      return Unavailable("the coordinator ended without having opened a port");
    }
    clock_.SleepFor(kPortPoll);
  }
  return DeadlineExceeded("the coordinator opened no port within {}; its log is {}/coordinator.log",
                          absl::FormatDuration(options_.start_timeout), options_.work_folder);
}

bool LeftInPeace(const ChildEnd& end) {
  return end.clean() ||
         (WIFEXITED(end.wait_status) && WEXITSTATUS(end.wait_status) == rpc::kExitLeftJob);
}

absl::Status LocalCluster::Check() {
  const std::vector<ChildEnd> ends = TakeEnds();
  for (const ChildEnd& end : ends) {
    if (!LeftInPeace(end)) {
      return Lost(end, Describe(end));
    }
  }
  return absl::OkStatus();
}

std::vector<ChildEnd> LocalCluster::TakeEnds() {
  std::vector<ChildEnd> ends;
  for (ProcessGroup* group : Groups()) {
    const std::vector<ChildEnd> more = group->Reap();
    ends.insert(ends.end(), more.begin(), more.end());
  }
  return ends;
}

absl::Status LocalCluster::Lost(const ChildEnd& end, std::string message) {
  const std::string tail = TailOf(end.log_file, kTailLines);
  if (!tail.empty()) {
    message += fmt::format("; the end of its log ({}):\n{}", end.log_file, tail);
  }
  return absl::UnavailableError(message);
}

void LocalCluster::Finish(absl::Duration limit) {
  access_.reset();
  for (ProcessGroup* group : Groups()) {
    group->TakeDown(limit);
  }
}

void LocalCluster::Kill() { Finish(absl::ZeroDuration()); }

}  // namespace shoal::cli
