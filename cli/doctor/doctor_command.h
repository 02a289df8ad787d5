// `shoal doctor`: says for each feature what this machine offers and what to do about what is
// missing. Judges by pure functions of the facts.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/run/command.h"
#include "cli/run/machine.h"
#include "core/transport/rdma_flags.h"

namespace shoal::cli {

// Judges all but GPUs and RDMA (gpu_checks.h, rdma_checks.h).
std::vector<Check> Judge(const Machine& machine);

struct DoctorOptions {
  bool json = false;
  std::string job_file;  // may be empty
  transport::RdmaFlags rdma;
  std::string root;  // for tests: a folder instead of /
};
// Returns kFailure if something required is missing.
absl::StatusOr<ExitCode> RunDoctor(const DoctorOptions& options, Streams& streams);

}  // namespace shoal::cli
