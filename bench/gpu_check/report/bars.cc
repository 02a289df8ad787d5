#include "bench/gpu_check/report/bars.h"

#include "fmt/format.h"

namespace shoal::bench {

WantedBar BarOf(const TrainFloor& floor) {
  return {"train", std::string(floor.name),
          floor.tokens_per_second > 0
              ? fmt::format("at least {:.0f} tokens/s", floor.tokens_per_second)
              : fmt::format("utilisation at least {:.2f}", floor.utilisation)};
}

WantedBar PeerBar(const std::string& case_name, PeerOptimizer optimizer) {
  const char* const with =
      optimizer == PeerOptimizer::kBf16 ? "in bf16 alone" : "with fp32 masters";
  return {"torch", fmt::format("{}, beside PyTorch {}", case_name, with),
          fmt::format("at least {:.1f} of its tokens/s", kPeerRatio)};
}

WantedBar OpsBar() { return {"ops", "operators against the CPU's", "all within their bounds"}; }
WantedBar GoldenBar() { return {"golden", "golden training steps", "within their bounds"}; }
WantedBar ServedLossBar() {
  return {"served", "losses of training through servers", "within their bounds of the CPU's"};
}
WantedBar KernelsBar() {
  return {"kernels", "memory-bound kernels, the slowest",
          fmt::format("at least {:.1f} of the copy bandwidth", kLeastOfFloor)};
}
WantedBar ServiceBar() {
  return {"service", "a step through servers beside a resident one",
          fmt::format("at most {:.0f}% longer", 100 * kMostLongerByServers)};
}
WantedBar ServiceOnGpuBar() {
  WantedBar bar = ServiceBar();
  bar.what += ", service.memory: cuda";
  return bar;
}
WantedBar OffloadRatioBar(int64_t tokens) {
  return {"offload", fmt::format("k at {} tokens, planned beside measured", tokens),
          fmt::format("within {:.0f}%", 100 * kRatioPrediction)};
}
WantedBar OffloadCostBar() {
  return {"offload", fmt::format("full activation offload where k is at most {}", kMostK),
          fmt::format("at most {:.0f}% longer", 100 * kMostOffloadCost)};
}
WantedBar OffloadBitsBar() {
  return {"offload", "loss and gradients with activation offload", "the same bits as without"};
}

std::vector<WantedBar> WantedBars(const PartSizes& sizes) {
  std::vector<WantedBar> bars = {OpsBar(), GoldenBar(), ServedLossBar()};
  for (const TrainFloor& floor : kTrainFloors) {
    bars.push_back(BarOf(floor));
  }
  bars.push_back(KernelsBar());
  bars.push_back(ServiceBar());
  bars.push_back(ServiceOnGpuBar());
  for (const int64_t tokens : sizes.offload_tokens) {
    bars.push_back(OffloadRatioBar(tokens));
  }
  bars.push_back(OffloadCostBar());
  bars.push_back(OffloadBitsBar());
  return bars;
}

}  // namespace shoal::bench
