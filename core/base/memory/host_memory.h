// How much memory of the machine programs may plan with: the one place that asks for it.
//
// Some virtual machines are given memory only as they use it, and show a fraction of what they may
// have when a program starts. The environment variable SHOAL_HOST_MEMORY ("128GiB") says what the
// machine really has; it takes the place of MemTotal of /proc/meminfo, and what is used now is
// taken from it. The limit of the control group counts all the same.
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

// InvalidArgument on a value of the variable that is no size; NotFound where the kernel does not
// say. `root` is put before /proc and /sys, for tests.
absl::StatusOr<HostMemory> ReadHostMemory(const std::string& root = "");

// Of that what is available.
absl::StatusOr<int64_t> AvailableMemory();

}  // namespace shoal
