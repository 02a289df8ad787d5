#include "core/base/random.h"

#include <sys/random.h>

#include <bit>
#include <cmath>
#include <numbers>

#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal {
namespace {

uint64_t SplitMix64(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

Random::Random(uint64_t seed, uint64_t stream) {
  uint64_t mixed_stream = stream ^ 0xD1B54A32D192ED03ull;
  uint64_t state = seed ^ SplitMix64(mixed_stream);
  for (uint64_t& word : state_) {
    word = SplitMix64(state);
  }
}

uint64_t Random::Next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

uint64_t Random::Below(uint64_t bound) {
  SHOAL_CHECK(bound > 0);
  // 2^64 mod bound: numbers below it must be rejected for uniformity.
  const uint64_t threshold = (0 - bound) % bound;
  while (true) {
    const uint64_t value = Next();
    if (value >= threshold) {
      return value % bound;
    }
  }
}

int64_t Random::Between(int64_t low, int64_t high) {
  SHOAL_CHECK(low <= high);
  return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
}

double Random::Normal() {
  const double u = 1.0 - Uniform();  // (0, 1]
  const double v = Uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::string SecureToken() {
  std::array<uint64_t, 2> words{};
  SHOAL_CHECK(getrandom(words.data(), sizeof(words), 0) == static_cast<ssize_t>(sizeof(words)));
  return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

}  // namespace shoal
