// Copies between pinned host memory and the device, as offload does.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/ops/compute_device.h"

namespace shoal::bench {

// A stream and two buffers of random data per direction.
class Bus {
 public:
  static absl::StatusOr<std::unique_ptr<Bus>> Make(worker::ComputeDevice& compute_device,
                                                   int64_t bytes);

  void PutUp() { up_.stream->Copy(up_.device.data(), up_.host.data(), bytes_); }
  void PutDown() { down_.stream->Copy(down_.host.data(), down_.device.data(), bytes_); }
  absl::Status Wait();
  int64_t bytes() const { return bytes_; }

 private:
  struct Direction {
    worker::Buffer host;
    worker::Buffer device;
    std::unique_ptr<worker::Stream> stream;
  };
  Bus(worker::ComputeDevice& compute_device, int64_t bytes)
      : bytes_(bytes), host_memory_(compute_device.device->NewHostMemory(0)) {}

  const int64_t bytes_;
  const std::unique_ptr<worker::Memory> host_memory_;
  Direction up_, down_;
};

// Median seconds of `put` and of waiting for its copies.
absl::StatusOr<double> BusSeconds(Bus& bus, const std::function<void()>& put);

struct BusRates {  // bytes per second
  double to_device = 0;
  double to_host = 0;
  double duplex = 0;  // both directions concurrently
};
absl::StatusOr<BusRates> MeasureBus(Bus& bus);

}  // namespace shoal::bench
