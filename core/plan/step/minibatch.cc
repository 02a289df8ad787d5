#include "core/plan/step/minibatch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/base/check.h"
#include "core/base/random.h"

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

// Walks over passes of `count` elements, shuffled or not.
class Walk {
 public:
  Walk(int64_t count, uint64_t seed, bool shuffle)
      : count_(count), seed_(seed), shuffle_(shuffle) {}

  int64_t At(int64_t position) {
    const int64_t pass = position / count_;
    const int64_t index = position % count_;
    if (!shuffle_) {
      return index;
    }
    if (!permutation_.has_value() || pass != pass_) {
      permutation_.emplace(count_, seed_, static_cast<uint64_t>(pass));
      pass_ = pass;
    }
    return permutation_->At(index);
  }

 private:
  int64_t count_;
  uint64_t seed_;
  bool shuffle_;
  int64_t pass_ = -1;
  std::optional<Permutation> permutation_;
};

// Samples number [begin, end) of the walk over a whole run.
template <typename SampleAt>
std::vector<int64_t> Minibatch(int64_t step, int64_t minibatch_samples, const SampleAt& at) {
  SHOAL_CHECK(step >= 1 && minibatch_samples >= 1);
  std::vector<int64_t> samples;
  samples.reserve(static_cast<size_t>(minibatch_samples));
  const int64_t begin = (step - 1) * minibatch_samples;
  for (int64_t position = begin; position < begin + minibatch_samples; ++position) {
    samples.push_back(at(position));
  }
  return samples;
}

}  // namespace

std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      int64_t dataset_samples, uint64_t seed, bool shuffle) {
  SHOAL_CHECK(dataset_samples >= 1);
  Walk walk(dataset_samples, seed, shuffle);
  return Minibatch(step, minibatch_samples, [&](int64_t position) { return walk.At(position); });
}

std::vector<int64_t> SharesOfPass(const Mixture& mixture) {
  const auto total = std::reduce(mixture.samples.begin(), mixture.samples.end(), int64_t{0});
  const double weights = std::accumulate(mixture.weights.begin(), mixture.weights.end(), 0.0);
  std::vector<int64_t> shares;
  std::vector<std::pair<double, size_t>> remainders;  // largest first, then in the sources' order
  int64_t left = total;
  for (size_t i = 0; i < mixture.weights.size(); ++i) {
    const double exact = static_cast<double>(total) * (mixture.weights[i] / weights);
    shares.push_back(std::min(left, static_cast<int64_t>(exact)));
    remainders.emplace_back(static_cast<double>(shares.back()) - exact, i);
    left -= shares.back();
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) {
    ++shares[remainders[i].second];
  }
  return shares;
}

std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      const Mixture& mixture, uint64_t seed, bool shuffle) {
  SHOAL_CHECK(!mixture.samples.empty() && mixture.samples.size() == mixture.weights.size());
  const std::vector<int64_t> shares = SharesOfPass(mixture);
  std::vector<int64_t> ends(shares.size());  // of each source's places in a pass
  std::partial_sum(shares.begin(), shares.end(), ends.begin());
  std::vector<int64_t> first_samples(shares.size());
  std::exclusive_scan(mixture.samples.begin(), mixture.samples.end(), first_samples.begin(),
                      int64_t{0});
  Walk places(ends.back(), seed, shuffle);
  std::vector<Walk> of_sources;
  Random seeds(seed, mixture.samples.size());
  for (const int64_t samples : mixture.samples) {
    of_sources.emplace_back(samples, seeds.Next(), shuffle);
  }
  return Minibatch(step, minibatch_samples, [&](int64_t position) {
    const int64_t pass = position / ends.back();
    const int64_t place = places.At(position);
    const auto source = static_cast<size_t>(std::ranges::upper_bound(ends, place) - ends.begin());
    const int64_t begin = ends[source] - shares[source];
    return first_samples[source] + of_sources[source].At(pass * shares[source] + place - begin);
  });
}

std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      const Dataset& dataset, uint64_t seed, bool shuffle) {
  return dataset.mixture.weights.empty()
             ? MinibatchSamples(step, minibatch_samples, dataset.samples, seed, shuffle)
             : MinibatchSamples(step, minibatch_samples, dataset.mixture, seed, shuffle);
}

}  // namespace shoal::plan
