// Jobs of the GPU check that run as processes: their folder, their data, and the logs they leave.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/on_demand/train_run.h"
#include "core/job/job.h"

namespace shoal::bench {

// A folder that is removed with all it holds: in memory where there is room for `bytes` twice. What
// killed checks have left there goes first.
class WorkFolder {
 public:
  explicit WorkFolder(int64_t bytes);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Of all of the part, at most `most`. DeadlineExceeded where no time is left.
absl::StatusOr<absl::Duration> TimeLeft(const PartRun& run, absl::Duration most);

// The path of `shoal`; FailedPrecondition where it is not there.
absl::StatusOr<std::string> ShoalProgram(const PartOptions& options);

// JSONL: each sample one sequence of so many random tokens.
absl::Status WriteSamples(const std::string& path, const plan::ModelSpec& spec,
                          const std::vector<int64_t>& lengths, uint64_t seed);

// One server and one worker on this host, without end.
plan::Job JobOfOneWorker(const std::string& model, const std::string& samples,
                         int64_t microbatch_tokens, plan::DeviceKind device);

// All the processes' logs in one file beside the part's own, OUTPUT/NAME.log; nothing without an
// output.
void KeepLogs(const PartOptions& options, const TrainRunner& runner, const std::string& name);

// The first line of a process's log that has `words`, from there on; empty where there is none.
std::string LineOfLog(const TrainRunner& runner, const std::string& process,
                      const std::string& words);

}  // namespace shoal::bench
