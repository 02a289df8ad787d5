#include "core/transport/locked_memory.h"

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/base/bytes.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr int kIpcLock = 14;  // CAP_IPC_LOCK of linux/capability.h

bool HasBit(const std::string& hexadecimal, int bit) {
  return (std::strtoull(hexadecimal.c_str(), nullptr, 16) >> bit & 1) != 0;
}

// The kernel asks for the capability in the initial user namespace: having it only in another does
// not count.
bool InFirstUserNamespace(const std::string& root) {
  std::ifstream file(root + "/proc/self/uid_map");
  uint64_t inside = 0;
  uint64_t outside = 0;
  uint64_t count = 0;
  return file >> inside >> outside >> count && inside == 0 && outside == 0 && count == 0xFFFFFFFF;
}

}  // namespace

LockedMemory ReadLockedMemory(const std::string& root) {
  LockedMemory memory;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    memory.limit_bytes = static_cast<int64_t>(limit.rlim_cur);
  }
  const bool first_namespace = InFirstUserNamespace(root);
  std::ifstream status(root + "/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    std::string value;
    words >> key >> value;
    if (key == "CapEff:") {
      memory.capable = first_namespace && HasBit(value, kIpcLock);
    } else if (key == "CapBnd:") {
      memory.capability_in_reach = first_namespace && HasBit(value, kIpcLock);
    }
  }
  return memory;
}

absl::Status CheckLockedMemory(const LockedMemory& memory, int64_t bytes) {
  if (memory.capable || memory.limit_bytes < 0 || bytes <= memory.limit_bytes) {
    return absl::OkStatus();
  }
  return ResourceExhausted(
      "{} of memory must be locked and the limit is {}: raise it (ulimit -l unlimited, "
      "LimitMEMLOCK=infinity of the service, the container runtime's memlock limit), or run as "
      "root "
      "with the capability IPC_LOCK",
      FormatBytes(bytes), FormatBytes(memory.limit_bytes));
}

}  // namespace shoal::transport
