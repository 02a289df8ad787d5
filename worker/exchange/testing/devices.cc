#include "worker/exchange/testing/devices.h"

#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::worker {

std::vector<DeviceCase> DeviceCases() {
  return {{.name = "Cpu",
           .make =
               [](uint64_t seed, int64_t fail_at_copy, int64_t budget_bytes) {
                 return MakeCpuDevice(budget_bytes, {.longest_delay = absl::Microseconds(200),
                                                     .seed = seed,
                                                     .fail_at_copy = fail_at_copy});
               }},
          {.name = "Late",
           .fails = false,
           .make = [](uint64_t seed, int64_t, int64_t budget_bytes) -> std::unique_ptr<Device> {
             return budget_bytes == 0 ? std::make_unique<LateDevice>(seed)
                                      : std::make_unique<LateDevice>(seed, budget_bytes);
           },
           .reached = false}};
}

}  // namespace shoal::worker
