// The kernel's view of what this process may do with mapped memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

namespace shoal {

// Whether this process may write all of it.
inline bool MappedForWriting(std::span<const std::byte> memory) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) {
    return false;
  }
  uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = at + memory.size();
  char line[4096];
  while (at < end && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long from = 0;
    unsigned long long to = 0;
    char access[5] = "";
    if (std::sscanf(line, "%llx-%llx %4s", &from, &to, access) == 3 && from <= at && at < to &&
        access[1] == 'w') {
      at = to;
    }
  }
  std::fclose(maps);
  return at >= end;
}

}  // namespace shoal
