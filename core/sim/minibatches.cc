#include "core/sim/minibatches.h"

#include "core/base/random.h"

namespace shoal::sim {

Minibatches DrawnMinibatches(const plan::LengthDistribution& lengths, int64_t samples,
                             uint64_t seed) {
  return [=](int64_t step) -> absl::StatusOr<std::vector<plan::SampleLength>> {
    Random random(seed, static_cast<uint64_t>(step));
    std::vector<plan::SampleLength> minibatch;
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t tokens = plan::DrawLength(lengths, random);
      minibatch.push_back({.sample = i, .tokens = tokens, .targets = tokens});
    }
    return minibatch;
  };
}

}  // namespace shoal::sim
