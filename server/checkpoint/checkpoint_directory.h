// The checkpoint directory of a run, for the coordinator, which alone writes into it and removes
// from it (servers write shards into the folder that it makes for them).
//
// The file `owner` names the run that has taken the directory last, and its term, one more than the
// one before. A run that has been paused, or whose command line is gone, sees there that another
// has taken over: everything here then fails with Aborted, and leaves all as it is.
//
// A checkpoint is written to step-XXXXXXXX.RUN and renamed once it is complete, so that two runs
// never write to one folder. Not thread-safe; calls may block on the disk.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::server {

inline constexpr int64_t kNoStep = -1;

// A job in one life of its coordinator.
struct JobLife {
  std::string job;   // id
  int64_t term = 0;  // of the coordinator
};

class CheckpointDirectory {
 public:
  // Takes the directory, which is made if need be, from whatever run had it, and removes what that
  // has not completed. Aborted where that is of a later life of the same job.
  static absl::StatusOr<CheckpointDirectory> Take(const std::string& directory,
                                                  const JobLife& of = {});

  // Aborted where the directory is of a later life of the same job.
  static absl::Status CheckNewest(const std::string& directory, const JobLife& of);

  int64_t term() const { return term_; }
  // Once another run has taken the directory, by name: AlreadyExists, or where it is a later one of
  // the same job, Aborted.
  absl::Status CheckOwned() const;

  // Makes an empty folder for the shards of a step's checkpoint and returns its path.
  // FailedPrecondition if the step has a complete one.
  absl::StatusOr<std::string> Begin(int64_t step);
  // All shards have been written and synced: looks at each, writes job.yaml and the manifest, and
  // returns the path of what is a complete checkpoint now.
  absl::StatusOr<std::string> Complete(const Manifest& manifest, const std::string& job_yaml);
  // Removes what there is of a checkpoint that is not complete.
  absl::Status Discard(int64_t step);
  // Removes the oldest complete checkpoints beyond `keep` (at least 1 stays) but for those of
  // `steps`.
  absl::Status Prune(int64_t keep, const std::set<int64_t>& steps = {});

 private:
  CheckpointDirectory(std::string directory, JobLife of, std::string run, int64_t term);
  std::string UnfinishedPath(int64_t step) const;

  std::string directory_;
  JobLife of_;
  std::string run_;
  int64_t term_;
};

}  // namespace shoal::server
