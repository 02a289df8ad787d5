// The simulated processes' numbers, below Faults::kMaxProcesses.
#pragma once

#include <string>

namespace shoal::simulation {

inline constexpr int kSuccessor = 1;  // of the first coordinator, which is 0
inline constexpr int kCommandLine = 2;
inline constexpr int kMaxServers = 12;
inline constexpr int kMaxWorkers = 48;
inline int ServerProcess(int index) { return 3 + index; }
// Of "server:1", the address with which it registers.
inline int ServerAt(const std::string& address) {
  return std::stoi(address.substr(address.find(':') + 1));
}
inline int WorkerProcess(int index) { return 3 + kMaxServers + index; }

}  // namespace shoal::simulation
