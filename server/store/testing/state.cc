#include "server/store/testing/state.h"

#include "server/store/host_state.h"

namespace shoal::server {

bool PrepareState(uint64_t) { return true; }
StateFactory TestedState() { return HostState::Create; }

}  // namespace shoal::server
