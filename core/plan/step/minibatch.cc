#include <array>
#include <bit>

#include "core/base/check.h"
#include "core/base/random.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {
namespace {

// A seeded permutation of [0, count) that computes any element directly, without a table: a Feistel
// network over the next even power of two, iterated until it lands inside. The domain has less
// than 4 x count elements, so that takes few rounds.
class Permutation {
 public:
  Permutation(int64_t count, uint64_t seed, uint64_t pass) : count_(static_cast<uint64_t>(count)) {
    const int bits = std::bit_width(count_ - 1);
    half_bits_ = std::max(1, (bits + 1) / 2);
    Random random(seed, pass);
    for (uint64_t& key : keys_) {
      key = random.Next();
    }
  }

  int64_t At(int64_t position) const {
    auto value = static_cast<uint64_t>(position);
    do {
      value = Encrypt(value);
    } while (value >= count_);
    return static_cast<int64_t>(value);
  }

 private:
  uint64_t Encrypt(uint64_t value) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t mixed = left ^ (Mix(right ^ key) & mask);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }

  // The finaliser of splitmix64.
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  uint64_t count_;
  int half_bits_ = 0;
  std::array<uint64_t, 8> keys_{};
};

}  // namespace

std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      int64_t dataset_samples, uint64_t seed, bool shuffle) {
  SHOAL_CHECK(step >= 1 && minibatch_samples >= 1 && dataset_samples >= 1);
  std::vector<int64_t> samples;
  samples.reserve(static_cast<size_t>(minibatch_samples));
  const int64_t begin = (step - 1) * minibatch_samples;
  const int64_t end = begin + minibatch_samples;
  for (int64_t position = begin; position < end;) {
    const int64_t pass = position / dataset_samples;
    const int64_t pass_end = std::min(end, (pass + 1) * dataset_samples);
    const Permutation permutation(dataset_samples, seed, static_cast<uint64_t>(pass));
    for (; position < pass_end; ++position) {
      const int64_t index = position - pass * dataset_samples;
      samples.push_back(shuffle ? permutation.At(index) : index);
    }
  }
  return samples;
}

}  // namespace shoal::plan
