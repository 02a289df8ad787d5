#include "worker/job/device_flag.h"

#include <charconv>

#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<DeviceFlag> ParseDeviceFlag(std::string_view text) {
  constexpr std::string_view kNumbered = "cuda:";
  if (text.empty()) {
    return DeviceFlag{};
  }
  if (text == "cpu") {
    return DeviceFlag{.kind = plan::DeviceKind::kCpu};
  }
  if (text == "cuda") {
    return DeviceFlag{.kind = plan::DeviceKind::kCuda};
  }
  DeviceFlag flag{.kind = plan::DeviceKind::kCuda};
  if (text.starts_with(kNumbered)) {
    const std::string_view number = text.substr(kNumbered.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), flag.gpu);
    if (error == std::errc() && end == number.data() + number.size() && flag.gpu >= 0) {
      return flag;
    }
  }
  return InvalidArgument("--device {}: expected cpu, cuda or cuda:N (the GPU's number, from 0)",
                         text);
}

}  // namespace shoal::worker
