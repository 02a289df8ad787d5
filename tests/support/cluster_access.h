// A coordinator that a test starts by hand, as on several machines: where it listens, and its
// token.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "tests/support/program.h"

namespace shoal::testing {

struct ClusterAccess {
  std::string address;
  std::string token_file;
};
// Chooses a free port below those that the kernel gives out, and writes a token to the folder.
ClusterAccess MakeClusterAccess(const std::string& folder, Random& random);

// Asks the coordinator: `shoal COMMAND...`.
ProgramResult Ask(const ClusterAccess& access, std::vector<std::string> command);

// Waits until the coordinator answers and has so many members; fails the test after a minute.
// Members that do not stay are to be started once it answers: they do not wait for it.
void AwaitMembers(const ClusterAccess& access, size_t count);

// Likewise until the job submitted last is in this state.
void AwaitState(const ClusterAccess& access, const std::string& state);

}  // namespace shoal::testing
