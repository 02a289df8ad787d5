// `shoal checkpoint list|verify|export`. A CHECKPOINT is the folder of one step, or a job's
// checkpoint directory, which stands for its newest complete one (for verify: for all complete
// ones).
#pragma once

#include <string>

#include "cli/run/command.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::cli {

struct CheckpointOptions {
  std::string path;
  bool json = false;
};
absl::StatusOr<ExitCode> RunCheckpointList(const CheckpointOptions& options, Streams& streams);
// A damaged file is named on stdout and ends with exit code 2.
absl::StatusOr<ExitCode> RunCheckpointVerify(const CheckpointOptions& options, Streams& streams);

struct CheckpointExportOptions {
  std::string path;
  std::string output;
  std::string tokenizer;  // empty: that of the job's model, where it is still there
  std::string dtype = "fp32";
  bool merge = false;  // adapters with their model
  bool json = false;
};
absl::StatusOr<ExitCode> RunCheckpointExport(const CheckpointExportOptions& options,
                                             Streams& streams);

// The folder of one checkpoint that `path` stands for; NotFound names the directory without any.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path);

// The model folder of the job that wrote the checkpoint if it is still there, else empty.
std::string ModelFolderOf(const server::Checkpoint& checkpoint);

}  // namespace shoal::cli
