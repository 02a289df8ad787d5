// `shoal train`: checks everything, tokenises the data, runs the job on a cluster of this machine
// or a running one, and leaves a Hugging Face folder. The steps of it are in preflight.h,
// launcher.h, follow_job.h and train_report.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run/command.h"
#include "core/rpc/security.h"

namespace shoal::cli {

struct TrainOptions {
  std::string job_file;
  std::vector<std::string> overrides;  // KEY=VALUE
  int64_t steps = 0;                   // stop (well) after this step; 0: train.steps
  std::string resume;                  // kResumeNewest, kResumeAuto, or a step; empty: a new run
  bool overwrite = false;
  bool accept_changes = false;    // of what decides a resumed run's samples
  bool detach = false;            // submit, and leave the job to the coordinator
  bool wait_for_servers = false;  // however long it takes
  bool json = false;
  bool keep_logs = false;
  std::string trace;      // file for the timeline; empty: none
  int metrics_port = -1;  // of local processes, see LocalClusterOptions
  // For cluster.coordinator; empty: the environment's SHOAL_TOKEN, else the job's.
  std::string token_file;
  rpc::TlsOptions tls;         // of this command and, with cluster.local, of all its processes
  uint64_t fault_seed = 0;     // tests alone: see LocalClusterOptions
  std::string program_folder;  // empty: beside this program
};
absl::StatusOr<ExitCode> RunTrain(const TrainOptions& options, Streams& streams);

}  // namespace shoal::cli
