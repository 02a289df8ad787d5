// Which kind of state tests of the store run over: the one that their program is linked to.
#pragma once

#include <cstdint>

#include "server/store/partition_state.h"

namespace shoal::server {

// Whether there is what the state needs. An emulated GPU is new, with work in the seed's order.
bool PrepareState(uint64_t seed);
StateFactory TestedState();

}  // namespace shoal::server
