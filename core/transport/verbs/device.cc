#include "core/transport/verbs/device.h"

#include <cerrno>

#include "core/base/status.h"

namespace shoal::transport {

absl::StatusOr<std::shared_ptr<VerbsDevice>> VerbsDevice::Open(
    std::shared_ptr<VerbsApi> api, const DeviceDescription& description) {
  std::shared_ptr<VerbsDevice> device(new VerbsDevice(std::move(api), description));
  device->context_ = device->api_->OpenDevice(description.name);
  if (device->context_ == nullptr) {
    return VerbsError(errno, fmt::format("opening RDMA device {}", description.name));
  }
  device->pd_ = device->api_->AllocPd(device->context_);
  if (device->pd_ == nullptr) {
    return VerbsError(errno, fmt::format("a protection domain on {}", description.name));
  }
  return device;
}

VerbsDevice::~VerbsDevice() {
  if (pd_ != nullptr) {
    api_->DeallocPd(pd_);
  }
  if (context_ != nullptr) {
    api_->CloseDevice(context_);
  }
}

absl::Status VerbsError(int error, const std::string& what) {
  if (error == ENOMEM) {
    return ResourceExhausted(
        "{}; raise the limit on locked memory (ulimit -l, or IPC_LOCK in a container): `shoal "
        "doctor` shows it",
        Message(ErrnoToStatus(error, what)));
  }
  return ErrnoToStatus(error, what);
}

}  // namespace shoal::transport
