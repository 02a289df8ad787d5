#include "bench/gpu_check/base/bus.h"

#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/gpu_check/base/device_data.h"
#include "bench/gpu_check/base/timing.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

constexpr int kRounds = 5;

}  // namespace

absl::StatusOr<std::unique_ptr<Bus>> Bus::Make(worker::ComputeDevice& compute_device,
                                               int64_t bytes) {
  std::unique_ptr<Bus> bus(new Bus(compute_device, bytes));
  for (Direction* direction : {&bus->up_, &bus->down_}) {
    SHOAL_ASSIGN_OR_RETURN(direction->host, bus->host_memory_->Allocate(bytes));
    SHOAL_ASSIGN_OR_RETURN(direction->device, compute_device.device->Allocate(bytes));
    direction->stream = compute_device.device->NewStream(worker::StreamKind::kCopy);
    // Touches all pages and fills them with random data before timing.
    SHOAL_RETURN_IF_ERROR(
        FillNormal(*direction->stream, direction->device.data(), DType::kF32, bytes / 4, 1.0, 1));
    SHOAL_RETURN_IF_ERROR(
        CopyNow(*direction->stream, direction->host.data(), direction->device.data(), bytes));
  }
  return bus;
}

absl::Status Bus::Wait() {
  SHOAL_RETURN_IF_ERROR(up_.stream->Synchronize());
  return down_.stream->Synchronize();
}

absl::StatusOr<double> BusSeconds(Bus& bus, const std::function<void()>& put) {
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const absl::Time begin = absl::Now();
    put();
    SHOAL_RETURN_IF_ERROR(bus.Wait());
    if (round > 0) {
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
  }
  return Median(std::move(seconds));
}

absl::StatusOr<BusRates> MeasureBus(Bus& bus) {
  const auto bytes = static_cast<double>(bus.bytes());
  SHOAL_ASSIGN_OR_RETURN(const double up, BusSeconds(bus, [&] { bus.PutUp(); }));
  SHOAL_ASSIGN_OR_RETURN(const double down, BusSeconds(bus, [&] { bus.PutDown(); }));
  SHOAL_ASSIGN_OR_RETURN(const double both, BusSeconds(bus, [&] {
                           bus.PutUp();
                           bus.PutDown();
                         }));
  return BusRates{.to_device = bytes / up, .to_host = bytes / down, .duplex = 2 * bytes / both};
}

}  // namespace shoal::bench
