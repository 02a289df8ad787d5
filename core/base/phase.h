// What a worker's time goes to. The same names in its metrics, in the timelines of real runs and in
// those of the simulator.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace shoal {

enum class Phase {
  kOptimizerWait,
  kData,
  kForward,
  kBackward,
  kGetWait,
  kPutWait,
  kLayerWait,
  kTransferWait,   // for a copy between device and host
  kNeighbourWait,  // for a message of another stage of the pipeline
};
inline constexpr size_t kPhases = 9;
inline constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "optimizer_wait", "data",       "forward",       "backward",      "get_wait",
    "put_wait",       "layer_wait", "transfer_wait", "neighbour_wait"};

inline constexpr std::string_view Name(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

}  // namespace shoal
