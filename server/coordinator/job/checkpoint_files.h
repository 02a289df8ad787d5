// The checkpoint folder of a job as the coordinator sees it: servers write the shards, the
// coordinator the manifest, last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/server.pb.h"

namespace shoal::server {

struct CompleteCheckpoint {
  int64_t step = 0;
  std::string path;
  double loss = 0;  // of that step
};

// One per job. Calls may block on the disk; call one at a time.
class CheckpointFiles {
 public:
  virtual ~CheckpointFiles() = default;
  // Returns the complete checkpoint of the highest step, if there is one.
  virtual absl::StatusOr<std::optional<CompleteCheckpoint>> Newest() = 0;
  // Creates the folder of a step's checkpoint, removing what an interrupted attempt left in it, and
  // returns its path.
  virtual absl::StatusOr<std::string> Create(int64_t step) = 0;
  // Removes the files of a failed checkpoint.
  virtual absl::Status Discard(int64_t step) = 0;
  // Call when everything but the manifest is written and synced. Writes job.yaml, then the
  // manifest, which completes the checkpoint, and removes the oldest complete ones beyond `keep`.
  virtual absl::Status Finish(const CompleteCheckpoint& checkpoint,
                              const std::vector<proto::CheckpointShard>& shards) = 0;
};

}  // namespace shoal::server
