// The configs compared: the grid of the ODC paper (arXiv 2601.19362, figures 8 and 10), which
// varies one parameter at a time around a golden config, and datasets by model sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/step/step_plan.h"
#include "core/sim/cluster.h"

namespace shoal::bench {

struct Config {
  std::string shape = "1.5b";
  std::string dataset = "longalign";
  int64_t longest = 65536;  // tokens; scales the dataset's lengths to this maximum
  int64_t samples_per_device = 4;
  int64_t devices = 8;
  int64_t packing_ratio = 1;   // microbatch limit over longest
  std::vector<double> speeds;  // of the devices; empty: all 1

  bool operator==(const Config&) const = default;
  std::string Name() const;  // "1.5b, longalign to 64K, 4 samples on each of 8 devices, ratio 1"
  int64_t microbatch_tokens() const { return packing_ratio * longest; }
  int64_t minibatch_samples() const { return samples_per_device * devices; }
};

// Varies one parameter.
struct Sweep {
  std::string parameter;  // "devices"
  std::string file;       // part of a chart's file name
  std::vector<std::string> places;
  std::vector<Config> configs;
};
std::vector<Sweep> ParameterSweeps();

// Datasets x shapes, each shape on the paper's number of devices, at 2 and 4 samples on each.
std::vector<Config> ShapeConfigs();

// Returns all of these once, the golden one first.
std::vector<Config> Grid();

// The golden config with 32 samples on each device, one of them at half speed.
Config SlowDeviceConfig();

// "64K"
std::string InThousands(int64_t tokens);

using Steps = std::vector<std::vector<plan::SampleLength>>;
// Draws from a fixed seed: more steps begin with the same ones. Sample ids count through all steps.
absl::StatusOr<Steps> DrawSteps(const Config& config, int64_t steps);

// Returns `cluster` with its devices replaced by the config's.
plan::ClusterSpec WithDevices(plan::ClusterSpec cluster, const Config& config);

}  // namespace shoal::bench
