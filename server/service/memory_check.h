// Whether this machine has the memory that a server is about to take: asked before allocating,
// because a machine that runs out later kills a process without a word.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::server {

// Bytes that can be had without swapping: MemAvailable of /proc/meminfo, or what the control group
// still allows if that is less.
absl::StatusOr<int64_t> AvailableMemory();

// MemAvailable in bytes from the text of /proc/meminfo.
absl::StatusOr<int64_t> ParseMemAvailable(std::string_view meminfo);

}  // namespace shoal::server
