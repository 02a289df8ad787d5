// `shoal data preview JOB`: a job's first samples as tokens, and what of them is learnt.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/run/command.h"

namespace CLI {
class App;
}

namespace shoal::cli {

struct DataPreviewOptions {
  std::string job;
  int64_t samples = 3;
  bool json = false;
};
absl::StatusOr<ExitCode> RunDataPreview(const DataPreviewOptions& options, Streams& streams);

// Adds the command to `data`.
void AddDataPreview(CLI::App& data, CommandAction& action);

}  // namespace shoal::cli
