// One line of `shoal doctor`: a feature, what was found of it, and what to do.
#pragma once

#include <string>

namespace shoal::cli {

enum class Health { kOk, kLimited, kMissing };

struct Check {
  std::string feature;  // "training on the CPU"
  Health health = Health::kOk;
  bool required = false;  // without it nothing runs
  std::string detail;     // what was found
  std::string advice;     // what to do; empty when there is nothing to do
};

}  // namespace shoal::cli
