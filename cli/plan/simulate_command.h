// `shoal simulate`: how long a job's steps would take on a described cluster, under every way to
// assign samples and to synchronise.
#pragma once

#include <cstdint>
#include <string>

#include "cli/plan/simulation.h"
#include "cli/run/command.h"

namespace shoal::cli {

struct SimulateOptions {
  SimulationSource source;
  int64_t steps = 100;
  std::string trace;  // file; empty: none
  bool json = false;
};
absl::StatusOr<ExitCode> RunSimulate(const SimulateOptions& options, Streams& streams);

}  // namespace shoal::cli
