// Seeded randomness. A Random is a small state that can be saved and split; two with the same seed
// and stream give the same numbers on every machine (xoshiro256**, seeded through splitmix64). Not
// for secrets: see SecureToken.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace shoal {

class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0);

  uint64_t Next();
  double Uniform();                            // [0, 1)
  uint64_t Below(uint64_t bound);              // [0, bound), bound > 0, unbiased
  int64_t Between(int64_t low, int64_t high);  // [low, high]
  double Normal();  // mean 0, variance 1 (Box-Muller, no cached second value)

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[Below(i)]);
    }
  }

 private:
  std::array<uint64_t, 4> state_;
};

// Returns 128 bits from the kernel as 32 hexadecimal digits: incarnations' secrets, connection
// tokens.
std::string SecureToken();

}  // namespace shoal
