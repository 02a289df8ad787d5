// What this process has logged, as it travels.
#pragma once

#include "proto/coordinator.pb.h"

namespace shoal::rpc {

// Adds what was logged since the last call. Drops the oldest beyond some hundred lines: what could
// not be sent does not grow.
void AddLogLines(proto::NewLines& lines);

}  // namespace shoal::rpc
