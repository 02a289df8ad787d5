// How much memory of the machine programs may plan with: the only place that asks for it.
//
// Some virtual machines get memory only as they use it, and show a fraction of it when a program
// starts. The environment variable SHOAL_HOST_MEMORY ("128GiB") says what the machine really has;
// it replaces MemTotal of /proc/meminfo, and memory now in use is subtracted. The limit of the
// control group still applies.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace shoal {

struct HostMemory {
  int64_t total = 0;
  int64_t available = 0;  // without swapping
};

inline constexpr char kHostMemoryVariable[] = "SHOAL_HOST_MEMORY";

// InvalidArgument if the variable's value is not a size; NotFound if the kernel does not say.
// `root` is put before /proc and /sys, for tests.
absl::StatusOr<HostMemory> ReadHostMemory(const std::string& root = "");

// Returns the available part of it.
absl::StatusOr<int64_t> AvailableMemory();

}  // namespace shoal
