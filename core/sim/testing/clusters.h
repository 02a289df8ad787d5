// Seeded minibatches and clusters for the simulator's tests.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/plan/step/lengths.h"
#include "core/sim/comparison.h"
#include "core/sim/simulator.h"

namespace shoal::sim {

// `count` samples for each step.
inline Minibatches Drawn(std::string_view lengths, int64_t count) {
  return DrawnMinibatches(*plan::ParseLengths(lengths), count, 1);
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
