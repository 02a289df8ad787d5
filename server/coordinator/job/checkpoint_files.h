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

// One per job. Calls may block on the disk; one at a time.
class CheckpointFiles {
 public:
  virtual ~CheckpointFiles() = default;
  // The complete checkpoint of the highest step, if there is any.
  virtual absl::StatusOr<std::optional<CompleteCheckpoint>> Newest() = 0;
  // Makes the folder of a step's checkpoint, without what an interrupted attempt left in it, and
  // returns its path.
  virtual absl::StatusOr<std::string> Create(int64_t step) = 0;
  // Removes what was written of a checkpoint that failed.
  virtual absl::Status Discard(int64_t step) = 0;
  // Everything but the manifest is there and synced: writes job.yaml and then the manifest, which
  // makes the checkpoint complete, and removes the oldest complete ones beyond `keep`.
  virtual absl::Status Finish(const CompleteCheckpoint& checkpoint,
                              const std::vector<proto::CheckpointShard>& shards) = 0;
};

}  // namespace shoal::server
