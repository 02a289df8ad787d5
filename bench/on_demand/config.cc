#include "bench/on_demand/config.h"

#include <algorithm>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/step/lengths.h"

namespace shoal::bench {
namespace {

template <typename Change>
Sweep MakeSweep(std::string parameter, std::string file, const std::vector<int64_t>& values,
                bool thousands, const Change& change) {
  Sweep sweep{.parameter = std::move(parameter), .file = std::move(file)};
  for (const int64_t value : values) {
    sweep.places.push_back(thousands ? InThousands(value) : std::to_string(value));
    change(sweep.configs.emplace_back(), value);
  }
  return sweep;
}

}  // namespace

std::string InThousands(int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024)
                            : fmt::format("{:g}K", static_cast<double>(tokens) / 1000);
}

std::string Config::Name() const {
  std::string name = fmt::format(
      "{}, {} to {}, {} sample{} on each of {} device{}, packing ratio {}", shape, dataset,
      InThousands(longest), samples_per_device, samples_per_device == 1 ? "" : "s", devices,
      devices == 1 ? "" : "s", packing_ratio);
  return speeds.empty() ? name : name + ", one at half speed";
}

std::vector<Sweep> ParameterSweeps() {
  return {
      MakeSweep("samples per device", "samples", {1, 2, 4, 8, 16, 32}, false,
                [](Config& config, int64_t value) { config.samples_per_device = value; }),
      MakeSweep("devices", "devices", {1, 2, 4, 8, 16, 32}, false,
                [](Config& config, int64_t value) { config.devices = value; }),
      MakeSweep("maximum length, tokens", "length", {8192, 16384, 32768, 65536, 131072}, true,
                [](Config& config, int64_t value) { config.longest = value; }),
      MakeSweep("packing ratio", "packing", {1, 2, 4, 8}, false,
                [](Config& config, int64_t value) { config.packing_ratio = value; }),
  };
}

std::vector<Config> ShapeConfigs() {
  std::vector<Config> configs;
  for (const auto& [dataset, longest] :
       {std::pair("longalign", 65536), std::pair("swe-smith", 131072), std::pair("aime", 24000)}) {
    for (const auto& [shape, devices] :
         {std::pair("1.5b", 8), std::pair("7b", 8), std::pair("14b", 16), std::pair("32b", 32)}) {
      for (const int64_t samples : {2, 4}) {
        configs.push_back({.shape = shape,
                           .dataset = dataset,
                           .longest = longest,
                           .samples_per_device = samples,
                           .devices = devices});
      }
    }
  }
  return configs;
}

std::vector<Config> Grid() {
  std::vector<Config> all = {Config()};
  for (const Sweep& sweep : ParameterSweeps()) {
    all.insert(all.end(), sweep.configs.begin(), sweep.configs.end());
  }
  const std::vector<Config> shapes = ShapeConfigs();
  all.insert(all.end(), shapes.begin(), shapes.end());
  std::vector<Config> grid;
  for (const Config& config : all) {
    if (std::ranges::find(grid, config) == grid.end()) {
      grid.push_back(config);
    }
  }
  return grid;
}

Config SlowDeviceConfig() {
  return {.samples_per_device = 32, .speeds = {1, 1, 1, 1, 1, 1, 1, 0.5}};
}

absl::StatusOr<Steps> DrawSteps(const Config& config, int64_t steps) {
  SHOAL_ASSIGN_OR_RETURN(const plan::LengthDistribution lengths,
                         plan::ParseLengths(fmt::format("{}:{}", config.dataset, config.longest)));
  Random random(/*seed=*/1);
  Steps drawn(static_cast<size_t>(steps));
  int64_t id = 0;
  for (auto& step : drawn) {
    for (int64_t i = 0; i < config.minibatch_samples(); ++i) {
      const int64_t tokens = plan::DrawLength(lengths, random);
      step.push_back({.sample = id++, .tokens = tokens, .targets = tokens - 1});
    }
  }
  return drawn;
}

plan::ClusterSpec WithDevices(plan::ClusterSpec cluster, const Config& config) {
  const double flops = cluster.devices.front().flops;
  cluster.devices.clear();
  if (config.speeds.empty()) {
    cluster.devices.push_back({.count = config.devices, .flops = flops});
  }
  for (const double speed : config.speeds) {
    cluster.devices.push_back({.count = 1, .flops = flops, .speed = speed});
  }
  return cluster;
}

}  // namespace shoal::bench
