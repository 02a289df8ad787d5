// A whole cluster on this machine: starts coordinator, servers and workers as child processes,
// watches that none ends unasked, and takes them down. The programs lie beside `shoal` itself.
// Ports are chosen by the children (the coordinator announces its own through a file), the shared
// token reaches them through their environment alone, and their logs go to files in the work
// folder, where address and token lie for `shoal status` while the cluster runs (run_access.h).
//
// Used from the main thread only (subprocess.h says why). Destruction kills what still runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/run/run_access.h"
#include "core/base/process/subprocess.h"
#include "core/rpc/token.h"

namespace shoal::cli {

struct LocalClusterOptions {
  std::string program_folder;  // holds shoal-coordinator, shoal-server, shoal-worker
  std::string work_folder;     // made; logs and the port file go here
  int servers = 1;
  int workers = 1;
  int threads_per_server = 1;
  int threads_per_worker = 1;
  std::vector<int> gpus;  // their numbers: workers share them, in turn; none: as the job says
  // Tests: not 0 makes the workers' transports misbehave, each from a seed of its own.
  uint64_t fault_seed = 0;
  absl::Duration start_timeout = absl::Seconds(60);
  // Of the coordinator's metrics; servers and workers have the next ones. -1: none are served, 0:
  // free ones are.
  int metrics_port = -1;
  std::string log_level = "info";
};

class LocalCluster {
 public:
  // Returns once the coordinator listens and all processes run (they register in their own time).
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalClusterOptions& options,
                                                             Clock& clock = RealClock());
  ~LocalCluster() = default;

  const std::string& coordinator_address() const { return address_; }
  const rpc::Token& token() const { return token_; }
  // "coordinator URL, server-0 URL ...": empty where none are served.
  const std::string& metrics() const { return metrics_; }

  // OK while all run or those that ended did so with status 0 (they were told to leave). Else
  // Unavailable: which one ended how, with the last lines of its log.
  absl::Status Check();

  // The job is over: the processes are given a moment to leave by themselves, then asked to, and
  // killed after `limit`. None is left.
  void Finish(absl::Duration limit);
  // Ends them now.
  void Kill();

  // For tests and messages: the pid of "coordinator", "server-0", "worker-1"; 0 when it does not
  // run.
  pid_t PidOf(const std::string& name) const { return processes_.PidOf(name); }

 private:
  LocalCluster(LocalClusterOptions options, Clock& clock);
  absl::Status StartProgram(const std::string& name, const std::string& program,
                            std::vector<std::string> arguments, int threads);
  // The flags by which the next process serves metrics, to this machine alone.
  absl::StatusOr<std::vector<std::string>> MetricsFlags(const std::string& name);
  absl::Status StartCoordinator();
  absl::Status AwaitPort(const std::string& port_file);

  const LocalClusterOptions options_;
  Clock& clock_;
  const rpc::Token token_;
  std::string address_;
  std::string metrics_;
  int next_metrics_port_;
  ProcessGroup processes_;
  std::unique_ptr<RunAccess> access_;  // while the coordinator is meant to answer
};

// Folder of the running program, where its siblings are looked for.
absl::StatusOr<std::string> ProgramFolder();

// Cores shared out evenly over processes of one kind, at least 1 each.
int ThreadsPerProcess(int cores, int64_t processes, int64_t wanted);

}  // namespace shoal::cli
