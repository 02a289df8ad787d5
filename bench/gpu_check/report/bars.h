// The bars of the check: every report has each of them, as met, missed or not measured.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu_check/base/part_report.h"
#include "bench/gpu_check/base/parts.h"

namespace shoal::bench {

// A bar to measure, and the part that measures it.
struct WantedBar {
  std::string part;  // or "torch"
  std::string what;
  std::string bar;

  PartBar Found(const std::string& found, bool met) const { return {what, bar, found, met}; }
  PartBar NotMeasured(const std::string& why) const { return {what, bar, why, false, false}; }
};

// The least for whole steps on an H200; either of the two.
struct TrainFloor {
  std::string_view name;  // the case's
  double tokens_per_second = 0;
  double utilisation = 0;
};
inline constexpr TrainFloor kTrainFloors[] = {{"124m, 16 x 1024 tokens", 460e3, 0},
                                              {"1.3b, 4096 tokens", 40e3, 0},
                                              {"1.3b, 32768 tokens", 12e3, 0},
                                              {"7b, 4096 tokens", 0, 0.5}};
WantedBar BarOf(const TrainFloor& floor);

// Shoal's tokens/s of whole steps over PyTorch's, whose optimizer is all bf16 or keeps fp32 masters
// and moments, as Shoal's does.
enum class PeerOptimizer { kBf16, kFp32Masters };
inline constexpr double kPeerRatio = 1.1;
WantedBar PeerBar(const std::string& case_name, PeerOptimizer optimizer);

inline constexpr double kLeastOfFloor = 0.8;  // of the copy bandwidth
inline constexpr double kMostLongerByServers = 0.05;
inline constexpr double kRatioPrediction = 0.10;  // of the measured k
inline constexpr double kMostK = 0.8;             // largest k at which full offload may cost
inline constexpr double kMostOffloadCost = 0.02;  // at most this
WantedBar OpsBar();
WantedBar GoldenBar();
WantedBar ServedLossBar();
WantedBar KernelsBar();
WantedBar ServiceBar();
WantedBar ServiceOnGpuBar();
WantedBar OffloadRatioBar(int64_t tokens);
WantedBar OffloadCostBar();
WantedBar OffloadBitsBar();

// All but PyTorch's, in the report's order.
std::vector<WantedBar> WantedBars(const PartSizes& sizes);

}  // namespace shoal::bench
