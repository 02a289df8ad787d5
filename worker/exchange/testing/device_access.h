// Shared by tests of source and sink between device memory and the service: servers, a client and a
// device, which the program chooses (devices.h). Each test runs through pinned memory, and directly
// to and from device memory if transports reach it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/parameter_client.h"
#include "client/testing/client_rig.h"
#include "core/base/time_kind_clock.h"
#include "gtest/gtest.h"
#include "worker/backend/backend.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/exchange/step_access.h"
#include "worker/exchange/testing/devices.h"

namespace shoal::worker {

struct AccessCase {
  DeviceCase device;
  bool direct = false;
};
std::vector<AccessCase> AccessCases();
std::string NameOf(const testing::TestParamInfo<AccessCase>& info);

class DeviceAccess : public testing::TestWithParam<AccessCase> {
 protected:
  static constexpr int kUnits = 4;

  explicit DeviceAccess(const client::RigOptions& options = {});
  void TearDown() override { Leave(); }

  // Destroys the test's object between client and device, and the client.
  virtual void Leave() = 0;
  void MakeDevice(uint64_t seed, int64_t fail_at_copy = 0);
  // Makes a second device with too little memory for the units.
  std::unique_ptr<Device> MakeSmallDevice() const { return GetParam().device.make(1, 0, 1000); }
  // For the test's device, or another.
  StepEnvironment environment(Device* device = nullptr) {
    return {.units = rig_.unit_specs,
            .device = device == nullptr ? device_.get() : device,
            .compute = compute_.get(),
            .host = host_.get(),
            .client = client_.get(),
            .barriers = &barriers_,
            .time_kinds = &time_kinds_};
  }
  // A new step each time.
  void BeginStep();
  int64_t CountOf(int unit) const { return rig_.unit_specs[static_cast<size_t>(unit)].count; }

  client::ClientRig rig_;
  TimeKindClock time_kinds_{RealClock()};
  LayerBarriers barriers_{false, nullptr, &time_kinds_};
  int64_t step_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Memory> host_;
  std::unique_ptr<client::ParameterClient> client_;
};

}  // namespace shoal::worker
