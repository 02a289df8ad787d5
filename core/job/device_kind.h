// The device of a worker: train.device of the job file, and the flag of shoal-worker that overrides
// it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace shoal::plan {

enum class DeviceKind {
  kAuto,  // a usable GPU if the worker's machine has one, otherwise the CPU
  kCpu,
  kCuda,
};

inline constexpr std::array<std::pair<std::string_view, DeviceKind>, 3> kDeviceKindNames = {
    {{"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}}};

constexpr std::string_view Name(DeviceKind kind) {
  return kDeviceKindNames[static_cast<size_t>(kind)].first;
}

}  // namespace shoal::plan
