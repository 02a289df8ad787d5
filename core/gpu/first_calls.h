// Calls whose outcome no document specifies and that show how this machine's driver fetches weights
// and reports times: made once, for reports. They take under a second, plus the creation of the
// first context.
#pragma once

#include <string>
#include <vector>

namespace shoal::gpu {

struct FirstCall {
  std::string what;
  std::string found;    // a value, or CUDA's name of the outcome
  std::string meaning;  // what is expected, or what follows from it
};

// Uses the first GPU that this process sees. A failure is also a finding.
std::vector<FirstCall> TryFirstCalls();

}  // namespace shoal::gpu
