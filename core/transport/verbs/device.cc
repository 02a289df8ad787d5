#include "core/transport/verbs/device.h"

#include <cerrno>

#include "core/base/status.h"

namespace shoal::transport {
namespace {

const char* KindOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return "refused_by_peer";
    case IBV_WC_RETRY_EXC_ERR:
      return "no_answer";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "peer_not_ready";
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return "local";
    default:
      return "other";
  }
}

}  // namespace

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

void VerbsDevice::CountError(ibv_wc_status status) const {
  if (status != IBV_WC_WR_FLUSH_ERR) {
    absl::MutexLock lock(&errors_mutex_);
    ++errors_[KindOf(status)];
  }
}

std::map<std::string, int64_t> VerbsDevice::errors() const {
  absl::MutexLock lock(&errors_mutex_);
  return errors_;
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
