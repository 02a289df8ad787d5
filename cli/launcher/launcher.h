// A whole cluster on this machine: starts coordinator, servers and workers as child processes,
// watches that none ends unasked, starts one again where it is asked to (supervisor.h), and takes
// them down. The programs lie beside `shoal` itself. Ports are chosen by the children (the
// coordinator announces its own through a file, and keeps it in its later lives), the shared token
// reaches them through their environment alone, and their logs go to files in the work folder,
// where address and token lie for `shoal status` while the cluster runs (run_access.h).
//
// All are started to stay: they outlive each other, and what the coordinator knows of the job lies
// in a temporary folder, where its next life finds it.
//
// Used from the main thread only (subprocess.h says why). Destruction kills what still runs.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/run/run_access.h"
#include "core/base/process/subprocess.h"
#include "core/job/job.h"
#include "core/rpc/security.h"
#include "core/rpc/token.h"

namespace shoal::cli {

struct LocalClusterOptions {
  std::string program_folder;                 // holds shoal-coordinator, shoal-server, shoal-worker
  std::string work_folder;                    // made; logs and the port file go here
  rpc::Token token = rpc::Token::Generate();  // of all processes
  rpc::TlsOptions tls;                        // likewise; its folder has one for each role
  int servers = 1;
  int workers = 1;
  int threads_per_server = 1;
  int threads_per_worker = 1;
  std::vector<int> gpus;  // their numbers: workers share them, in turn; none: as the job says
  // Tests: not 0 makes the workers' transports misbehave, each from a seed of its own.
  uint64_t fault_seed = 0;
  absl::Duration start_timeout = absl::Seconds(60);
  double lease_seconds = 10;  // the job's, before the coordinator has it
  // Of the coordinator's metrics; servers and workers have the next ones. -1: none are served, 0:
  // free ones are.
  int metrics_port = -1;
  std::string log_level = "info";
};

// Counts, threads and patience as the job says, on a machine of so many cores.
LocalClusterOptions ClusterOf(const plan::Job& job, int cores);

class TemporaryFolder;

// Whether a process ended with 0 or, as a worker that was told to leave does, with 75.
bool LeftInPeace(const ChildEnd& end);

class LocalCluster {
 public:
  static constexpr char kCoordinator[] = "coordinator";  // its name
  // Returns once the coordinator listens and all processes run (they register in their own time).
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalClusterOptions& options,
                                                             Clock& clock = RealClock());
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  const std::string& coordinator_address() const { return address_; }
  // "coordinator URL, server-0 URL ...": empty where none are served.
  const std::string& metrics() const { return metrics_; }

  // OK while all run or those that ended did so with status 0 (they were told to leave). Else
  // Unavailable: which one ended how, with the last lines of its log.
  absl::Status Check();
  // The processes that ended since the last call, or since Check. Never blocks.
  std::vector<ChildEnd> TakeEnds();
  // Unavailable, with `message` and the last lines of the process's log.
  static absl::Status Lost(const ChildEnd& end, std::string message);
  // Starts one that ended as it was started before. A server or worker has its number again as
  // soon as its former life cannot be reached.
  absl::Status StartAgain(const std::string& name);

  // Those missing of so many servers.
  absl::Status StartServers(int64_t servers);
  // Whether it is a server that has left, where as many run as there are to be.
  bool IsSpare(const ChildEnd& end) const;
  // The job is over: workers are asked to end, then servers, then the coordinator; who has not
  // after `limit` is killed. None is left.
  void Finish(absl::Duration limit);
  // Ends them now.
  void Kill();

  // For tests and messages: the pid of "coordinator", "server-0", "worker-1"; 0 when it does not
  // run.
  pid_t PidOf(const std::string& name) const;

 private:
  LocalCluster(LocalClusterOptions options, Clock& clock);
  absl::Status StartProgram(const std::string& name, const std::string& program,
                            std::vector<std::string> arguments, int threads,
                            std::map<std::string, std::string> environment = {});
  absl::Status StartServer(int index);
  absl::Status StartWorker(int index);
  ProcessGroup& GroupOf(const std::string& name);
  // In the order in which they end: nobody looks for who is gone already.
  std::array<ProcessGroup*, 3> Groups() { return {&workers_, &servers_, &coordinator_}; }
  // The flags by which the next process serves metrics, to this machine alone.
  absl::StatusOr<std::vector<std::string>> MetricsFlags(const std::string& name);
  absl::Status StartCoordinator();
  absl::Status AwaitPort(const std::string& port_file);

  const LocalClusterOptions options_;
  Clock& clock_;
  std::string address_;
  std::string metrics_;
  int next_metrics_port_;
  int64_t wanted_servers_;
  std::map<std::string, Command> commands_;  // by name
  std::unique_ptr<TemporaryFolder> state_;   // of the coordinator
  ProcessGroup coordinator_;
  ProcessGroup servers_;
  ProcessGroup workers_;
  std::unique_ptr<RunAccess> access_;  // while the coordinator is meant to answer
};

// Folder of the running program, where its siblings are looked for.
absl::StatusOr<std::string> ProgramFolder();

}  // namespace shoal::cli
