// What a worker spends its time on. Metrics, records, tables, the timelines of real runs and those
// of the simulator use the same names; messages have the numbers.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace shoal {

enum class TimeKind {
  kStepWait,
  kData,
  kForward,
  kBackward,
  kGetWait,
  kPushWait,
  kLayerWait,
  kTransferWait,   // for a copy between device and host
  kNeighbourWait,  // for a message from another stage of the pipeline
};
inline constexpr size_t kTimeKinds = 9;
inline constexpr std::array<std::string_view, kTimeKinds> kTimeKindNames = {
    "step_wait", "data",       "forward",       "backward",      "get_wait",
    "push_wait", "layer_wait", "transfer_wait", "neighbour_wait"};

inline constexpr std::string_view Name(TimeKind kind) {
  return kTimeKindNames[static_cast<size_t>(kind)];
}

}  // namespace shoal
