// Running processes, as Linux tells of them in /proc.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace shoal::testing {

std::set<pid_t> ChildrenOf(pid_t parent);
// The program's path as it was called; empty where the process is gone.
std::string CommandOf(pid_t pid);
// False of a process that is gone, or dead and not yet waited for.
bool Runs(pid_t pid);

}  // namespace shoal::testing
