// How the numbers of a model are read, whatever holds them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"

namespace shoal::plan {

// Supplies elements [offset, offset + out.size()) of a unit's flat vector. May be called from
// several threads.
using UnitReader = std::function<absl::Status(int unit, int64_t offset, std::span<float> out)>;

}  // namespace shoal::plan
