// The checkpoint folder of a job as the coordinator sees it (server/checkpoint/
// checkpoint_directory.h; in tests in memory).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "proto/server.pb.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace shoal::server {

struct CompleteCheckpoint {
  int64_t step = 0;
  std::string path;
  double loss = 0;                                   // of that step
  std::optional<proto::ValidationEvent> validation;  // the newest by then
  proto::GradientNorms norms;                        // up to that step
  // Of the checkpoint that servers read what is frozen from, which stays.
  int64_t base = kNoStep;
};

// One per job. Calls may block on the disk; one at a time. AlreadyExists: another job's run has
// taken the folder; Aborted: a later run of the same job has.
class CheckpointFiles {
 public:
  virtual ~CheckpointFiles() = default;
  // Returns the complete checkpoint of the highest step, if there is one.
  virtual absl::StatusOr<std::optional<CompleteCheckpoint>> Newest() = 0;
  // Takes the folder, before all that follow. With `resume` its record goes on.
  virtual absl::Status Take(const JobLife& of, bool resume) = 0;
  // Aborted where a later life of the job has the folder; it need not be taken for that.
  virtual absl::Status CheckNewest(const JobLife& of) = 0;
  // The number of the last event in the run's record; 0: there is none.
  virtual absl::StatusOr<int64_t> LastRecorded() = 0;
  // Appends whole lines to the run's record.
  virtual absl::Status Record(const std::string& lines) = 0;
  // Makes the folder that a step's checkpoint is written to, and returns its path.
  virtual absl::StatusOr<std::string> Create(int64_t step) = 0;
  // Removes the files of a failed checkpoint.
  virtual absl::Status Discard(int64_t step) = 0;
  // All shards are there and synced: completes the checkpoint, removes the oldest complete ones
  // beyond `keep`, and returns its path.
  virtual absl::StatusOr<std::string> Finish(const CompleteCheckpoint& checkpoint,
                                             const std::vector<proto::CheckpointShard>& shards) = 0;
  // Room where checkpoints are written, if it is known.
  virtual std::optional<std::filesystem::space_info> Room() { return std::nullopt; }
  // Returns the path that a complete checkpoint of that step has; asks no disk.
  virtual std::string PathOf(int64_t step) const = 0;
  // Returns the path of that step's complete checkpoint; empty: there is none.
  virtual std::string Find(int64_t step) = 0;
  // Writes the model of a complete checkpoint as a Hugging Face folder, in place of an earlier one,
  // and returns its path.
  virtual absl::StatusOr<std::string> Export(const std::string& checkpoint) = 0;
};

}  // namespace shoal::server
