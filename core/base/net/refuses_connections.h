// Looks whether a process that was reached at an address is gone.
#pragma once

#include <string>

namespace shoal {

// Whether nobody listens at HOST:PORT any more: the host answers, and refuses. Takes 200 ms at
// most, but for the host's name. False where that cannot be told.
bool RefusesConnections(const std::string& address);

}  // namespace shoal
