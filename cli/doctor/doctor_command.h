// `shoal doctor`: what this machine offers, feature by feature, and what to do about what is
// missing. The judgement is a pure function of the facts.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/run/command.h"
#include "cli/run/machine.h"
#include "core/transport/rdma_flags.h"

namespace shoal::cli {

// All but GPUs and RDMA, which gpu_checks.h and rdma_checks.h judge.
std::vector<Check> Judge(const Machine& machine);

struct DoctorOptions {
  bool json = false;
  std::string job_file;  // may be empty
  transport::RdmaFlags rdma;
  std::string root;  // for tests: a folder in place of /
};
// kFailure when something required is missing.
absl::StatusOr<ExitCode> RunDoctor(const DoctorOptions& options, Streams& streams);

}  // namespace shoal::cli
