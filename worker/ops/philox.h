// Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3"): 128 random bits
// as a function of a counter and a key, so that anyone can make any of them, in any order.
#pragma once

#include <array>
#include <cstdint>

namespace shoal::worker {

using PhiloxWords = std::array<uint32_t, 4>;

constexpr PhiloxWords Philox4x32(PhiloxWords counter, uint64_t key) {
  auto low = static_cast<uint32_t>(key);
  auto high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(second >> 32) ^ counter[1] ^ low, static_cast<uint32_t>(second),
        static_cast<uint32_t>(first >> 32) ^ counter[3] ^ high, static_cast<uint32_t>(first)};
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

}  // namespace shoal::worker
