// `shoal plan`: what a job will need and move, and whether on-demand communication will help it,
// without running anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run/command.h"

namespace shoal::cli {

struct PlanCommandOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string cluster;  // file; empty: the job's workers as equal devices
  int64_t steps = 3;    // whose microbatches are shown; needs the data
  std::string draw;     // SVG file; empty: none
  bool json = false;
};
absl::StatusOr<ExitCode> RunPlan(const PlanCommandOptions& options, Streams& streams);

}  // namespace shoal::cli
