// Finds where on-demand loses, by simulating link rates and lengths. Traffic alone makes it lose:
// each device of a node fetches and pushes for itself; collectives cross a node's link once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/sim/cluster.h"

namespace shoal::bench {

struct BreakEvenMap {
  std::string name;                           // "2 nodes of 8 devices, each fetches for itself"
  std::string layout;                         // "2-nodes-of-8"
  std::vector<double> rates;                  // of a node's link, bits a second
  std::vector<int64_t> lengths;               // the longest sample, tokens
  std::vector<std::vector<double>> speed_up;  // [length][rate]: step, lb-mini over the baseline
  double lowest() const;
};

// Simulates three layouts, those with several devices a node also with a node cache: 1.5b,
// longalign, 4 samples on each device. Devices and links within nodes are those of `cluster`.
absl::StatusOr<std::vector<BreakEvenMap>> FindBreakEven(const plan::ClusterSpec& cluster,
                                                        int64_t steps);

}  // namespace shoal::bench
