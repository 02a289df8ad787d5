// What a run left in its checkpoint directory, to compare runs bit by bit.
#pragma once

#include <string>
#include <vector>

namespace shoal::testing {

// Master weights and moments of the newest checkpoint; an empty vector, and a failed test, if there
// is none.
std::vector<float> FinalState(const std::string& directory);

}  // namespace shoal::testing
