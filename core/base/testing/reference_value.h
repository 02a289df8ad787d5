// The numbers of tests/references, which are not stored: each follows from a name and a place.
#pragma once

#include <cstdint>
#include <string>

namespace shoal {

// Element i of what make_families.py calls value_of(name).
inline double ReferenceValue(const std::string& name, int64_t i) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char byte : name) {
    state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  uint64_t z = state + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  const uint64_t total =
      (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48 & 0xffff);
  return (static_cast<double>(total) / 65536 - 2) * 0.519615;
}

}  // namespace shoal
