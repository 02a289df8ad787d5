// Calls whose outcome no document settles and by which this machine's driver decides how weights
// are fetched and times are told: made once, for reports. They take under a second besides what
// making the first context does.
#pragma once

#include <string>
#include <vector>

namespace shoal::gpu {

struct FirstCall {
  std::string what;
  std::string found;    // a value, or CUDA's name of the outcome
  std::string meaning;  // what is expected, or what follows
};

// On the first GPU that this process sees. What fails is a finding too.
std::vector<FirstCall> TryFirstCalls();

}  // namespace shoal::gpu
