// Files for their owner alone: tokens and keys.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace shoal {

// Writes to a new file, never through one that is there already, which others might read: that is
// removed first. (WriteFileAtomically leaves the mode to the umask.)
absl::Status WriteSecretFile(const std::string& path, std::string_view contents);

}  // namespace shoal
