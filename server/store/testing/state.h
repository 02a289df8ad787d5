// The kind of state that tests of the store run over: the one that their program is linked to.
#pragma once

#include <cstdint>

#include "server/store/partition_state.h"

namespace shoal::server {

// Returns whether the state has what it needs. Recreates the fake GPU, with work in the seed's
// order.
bool PrepareState(uint64_t seed);
StateFactory TestedState();

}  // namespace shoal::server
