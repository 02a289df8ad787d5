// One line of `shoal doctor`: a feature, what was found, and what to do.
#pragma once

#include <string>

namespace shoal::cli {

enum class Health { kOk, kLimited, kMissing };

struct Check {
  std::string feature;  // "training on the CPU"
  Health health = Health::kOk;
  bool required = false;  // without it nothing runs
  std::string detail;     // what was found
  std::string advice;     // what to do; empty: nothing
};

}  // namespace shoal::cli
