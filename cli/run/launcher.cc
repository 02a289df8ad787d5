#include "cli/run/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "core/base/file.h"
#include "core/base/metrics.h"
#include "core/base/status.h"
#include "core/plan/memory/gpu_turn.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPortPoll = absl::Milliseconds(10);
constexpr int kTailLines = 12;
constexpr char kLoopback[] = "127.0.0.1";
// Members learn that the job is over when they next renew their leases, which may be seconds;
// asking is quicker.
constexpr absl::Duration kLeaveByThemselves = absl::Milliseconds(300);

}  // namespace

absl::StatusOr<std::string> ProgramFolder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    return Internal("/proc/self/exe: {}", error.message());
  }
  return self.parent_path().string();
}

int ThreadsPerProcess(int cores, int64_t processes, int64_t wanted) {
  if (wanted > 0) {
    return static_cast<int>(wanted);
  }
  return static_cast<int>(std::max<int64_t>(1, cores / std::max<int64_t>(1, processes)));
}

LocalCluster::LocalCluster(LocalClusterOptions options, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      token_(rpc::Token::Generate()),
      next_metrics_port_(options_.metrics_port),
      processes_(clock) {}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const LocalClusterOptions& options, Clock& clock) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(options.work_folder));
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options, clock));
  SHOAL_RETURN_IF_ERROR(cluster->StartCoordinator());
  SHOAL_ASSIGN_OR_RETURN(cluster->access_, RunAccess::Publish(options.work_folder,
                                                              cluster->address_, cluster->token_));
  for (int i = 0; i < options.servers; ++i) {
    SHOAL_RETURN_IF_ERROR(
        cluster->StartProgram(fmt::format("server-{}", i), "shoal-server",
                              {"--coordinator", cluster->address_, "--index", std::to_string(i),
                               "--threads", std::to_string(options.threads_per_server)},
                              options.threads_per_server));
  }
  for (int i = 0; i < options.workers; ++i) {
    std::vector<std::string> arguments = {
        "--coordinator",   cluster->address_, "--index",
        std::to_string(i), "--threads",       std::to_string(options.threads_per_worker)};
    if (!options.gpus.empty()) {
      const size_t gpus = options.gpus.size();
      const size_t place = plan::PlaceInTurn(static_cast<size_t>(i), gpus);
      arguments.insert(
          arguments.end(),
          {"--device", fmt::format("cuda:{}", options.gpus[place]), "--gpu-workers",
           std::to_string(plan::GpuTurn{.place = place, .gpus = gpus}.Share(options.workers))});
    }
    if (options.fault_seed != 0) {
      arguments.insert(arguments.end(), {"--fault-seed", std::to_string(options.fault_seed)});
    }
    SHOAL_RETURN_IF_ERROR(cluster->StartProgram(fmt::format("worker-{}", i), "shoal-worker",
                                                std::move(arguments), options.threads_per_worker));
  }
  return cluster;
}

absl::Status LocalCluster::StartProgram(const std::string& name, const std::string& program,
                                        std::vector<std::string> arguments, int threads) {
  const std::string path = options_.program_folder + "/" + program;
  if (access(path.c_str(), X_OK) != 0) {
    return NotFound("{}: no such program beside shoal; build all targets", path);
  }
  arguments.insert(arguments.begin(), path);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> metrics, MetricsFlags(name));
  arguments.insert(arguments.end(), metrics.begin(), metrics.end());
  return processes_.Start({.name = name,
                           .arguments = std::move(arguments),
                           .environment = {{rpc::kTokenVariable, token_.secret()},
                                           {"OMP_NUM_THREADS", std::to_string(threads)}},
                           .log_file = fmt::format("{}/{}.log", options_.work_folder, name)});
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
  SHOAL_RETURN_IF_ERROR(StartProgram("coordinator", "shoal-coordinator",
                                     {"--listen", "127.0.0.1:0", "--port-file", port_file}, 1));
  return AwaitPort(port_file);
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
    if (processes_.running() == 0) {
      return Unavailable("the coordinator ended without having opened a port");
    }
    clock_.SleepFor(kPortPoll);
  }
  return DeadlineExceeded("the coordinator opened no port within {}; its log is {}/coordinator.log",
                          absl::FormatDuration(options_.start_timeout), options_.work_folder);
}

absl::Status LocalCluster::Check() {
  for (const ChildEnd& end : processes_.Reap()) {
    if (!end.clean()) {
      std::string message = Describe(end);
      const std::string tail = TailOf(end.log_file, kTailLines);
      if (!tail.empty()) {
        message += fmt::format("; the end of its log ({}):\n{}", end.log_file, tail);
      }
      return absl::UnavailableError(message);
    }
  }
  return absl::OkStatus();
}

void LocalCluster::Finish(absl::Duration limit) {
  access_.reset();
  processes_.WaitForAll(kLeaveByThemselves);
  processes_.TakeDown(limit);
}

void LocalCluster::Kill() {
  access_.reset();
  processes_.Kill();
}

}  // namespace shoal::cli
