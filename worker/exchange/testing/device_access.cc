#include "worker/exchange/testing/device_access.h"

#include "core/transport/registry/registry.h"

namespace shoal::worker {
namespace {

std::unique_ptr<transport::Transport> MakeShm(const DeviceCase& device) {
  transport::TransportOptions options;
  options.gpu_memory = device.reach;
  return *transport::CreateTransport("shm", options);
}

}  // namespace

std::vector<AccessCase> AccessCases() {
  std::vector<AccessCase> cases;
  for (const DeviceCase& device : DeviceCases()) {
    cases.push_back({.device = device, .direct = false});
    if (device.reached) {
      cases.push_back({.device = device, .direct = true});
    }
  }
  return cases;
}

std::string NameOf(const testing::TestParamInfo<AccessCase>& info) {
  return info.param.device.name + (info.param.direct ? "Direct" : "");
}

DeviceAccess::DeviceAccess(const client::RigOptions& options)
    : rig_(options, MakeShm(GetParam().device)) {}

void DeviceAccess::MakeDevice(uint64_t seed, int64_t fail_at_copy) {
  Leave();
  host_.reset();
  compute_.reset();
  device_ = GetParam().device.make(seed, fail_at_copy, 0);
  compute_ = device_->NewStream();
  host_ = device_->NewHostMemory(0);
}

void DeviceAccess::BeginStep() {
  rig_.Publish(step_);
  ++step_;
  rig_.OpenAttempt(step_, 1);
  ASSERT_TRUE(client_->BeginStep(step_, 1, rig_.options.generation).ok());
}

}  // namespace shoal::worker
