// Seeded minibatches and clusters for the simulator's tests.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/lengths.h"
#include "sim/comparison.h"
#include "sim/simulator.h"

namespace shoal::sim {

// `count` samples for each step, other ones for every seed.
inline Minibatches DrawnMinibatches(std::string_view lengths, int64_t count, uint64_t seed = 1) {
  const plan::LengthDistribution distribution = *plan::ParseLengths(lengths);
  return [=](int64_t step) -> absl::StatusOr<std::vector<plan::SampleLength>> {
    Random random(seed, static_cast<uint64_t>(step));
    std::vector<plan::SampleLength> samples;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t tokens = plan::DrawLength(distribution, random);
      samples.push_back({.sample = i, .tokens = tokens, .targets = tokens});
    }
    return samples;
  };
}

inline constexpr plan::WorkerPolicy kFetchEachUse = {plan::Residency::kLayer,
                                                     plan::PushPolicy::kMicrobatch};

// The 1.5B shape, microbatches of 64K tokens.
inline SimulatorOptions Options(const plan::ClusterSpec& cluster) {
  SimulatorOptions options{
      .spec = *plan::NamedShape("1.5b"), .policy = kFetchEachUse, .cluster = cluster};
  options.job.data.microbatch_tokens = 65536;
  options.job.service.wire_type = DType::kBF16;
  return options;
}

// Devices whose transfers take no time.
inline plan::ClusterSpec FreeCluster(int64_t devices) { return {.devices = {{.count = devices}}}; }

}  // namespace shoal::sim
