// Jobs of the GPU check that run as processes: their folder, data and logs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/on_demand/train_run.h"
#include "core/job/job.h"

namespace shoal::bench {

// A folder removed with its contents: in memory if there is room for `bytes` twice. First removes
// what killed checks left there.
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

// Time left for the part, at most `most`. DeadlineExceeded if there is none.
absl::StatusOr<absl::Duration> TimeLeft(const PartRun& run, absl::Duration most);

// The path of `shoal`; FailedPrecondition if it is missing.
absl::StatusOr<std::string> ShoalProgram(const PartOptions& options);

// Writes JSONL: each sample one sequence of random tokens.
absl::Status WriteSamples(const std::string& path, const plan::ModelSpec& spec,
                          const std::vector<int64_t>& lengths, uint64_t seed);

// A job with one server and one worker on this host, without end.
plan::Job JobOfOneWorker(const std::string& model, const std::string& samples,
                         int64_t microbatch_tokens, plan::DeviceKind device);

// Joins all processes' logs to OUTPUT/NAME.log; does nothing without an output.
void KeepLogs(const PartOptions& options, const TrainRunner& runner, const std::string& name);

// The first line of a process's log with `words`, from there on; empty if there is none.
std::string LineOfLog(const TrainRunner& runner, const std::string& process,
                      const std::string& words);

}  // namespace shoal::bench
