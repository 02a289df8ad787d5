// Memory of running processes, as Linux tells it in /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::testing {

// The processes with that name that `parent` started. Names are cut to 15 characters, as in the
// kernel.
std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& name);

// Memory that the process has resident now; 0 if it is gone.
int64_t ResidentBytes(pid_t pid);

// The most memory that the process ever had resident, pages of files and shared memory that it uses
// included; 0 if it is gone.
int64_t PeakResidentBytes(pid_t pid);

}  // namespace shoal::testing
