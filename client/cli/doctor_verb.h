// `shoal doctor`: what this machine offers, feature by feature, and what to do about what is
// missing. The judgement is a pure function of the facts.
#pragma once

#include <string>
#include <vector>

#include "client/cli/machine.h"
#include "client/cli/verb.h"

namespace shoal::cli {

enum class Health { kOk, kLimited, kMissing };

struct Finding {
  std::string feature;  // "training on the CPU"
  Health health = Health::kOk;
  bool required = false;  // without it nothing runs
  std::string detail;     // what was found
  std::string advice;     // what to do; empty when there is nothing to do
};
std::vector<Finding> Judge(const Machine& machine);

struct DoctorOptions {
  bool json = false;
  std::string root;  // for tests: a folder in place of /
};
// kFailure when something required is missing.
absl::StatusOr<ExitCode> RunDoctor(const DoctorOptions& options, Streams& streams);

}  // namespace shoal::cli
