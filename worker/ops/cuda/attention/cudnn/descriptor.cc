#include "worker/ops/cuda/attention/cudnn/descriptor.h"

#include <array>
#include <utility>

#include "core/base/status.h"

namespace shoal::worker::cuda {

absl::Status CudnnStatus(const Cudnn& cudnn, cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) {
    return absl::OkStatus();
  }
  std::array<char, 256> last = {};
  cudnn.last_error_string(last.data(), last.size());
  const std::string_view why = std::string_view(last.data()).substr(0, 200);
  const std::string text = fmt::format("cuDNN: {}: {}{}{}", what, cudnn.error_string(status),
                                       why.empty() ? "" : ": ", why);
  if (status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) {
    return Unavailable("{}", text);
  }
  // The thousands are its kind. "Not supported" is no failure of the machine.
  return status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? Unimplemented("{}", text)
                                                            : Internal("{}", text);
}

CudnnDescriptor::CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type)
    : cudnn_(&cudnn) {
  Keep(cudnn.create_descriptor(type, &descriptor_), "making a descriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) {
    cudnn_->destroy_descriptor(descriptor_);
  }
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : cudnn_(other.cudnn_),
      descriptor_(std::exchange(other.descriptor_, nullptr)),
      status_(std::move(other.status_)) {}

void CudnnDescriptor::SetDescriptors(cudnnBackendAttributeName_t name,
                                     std::span<const cudnnBackendDescriptor_t> descriptors) {
  SetMany(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, descriptors);
}

void CudnnDescriptor::Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& descriptor) {
  if (status_.ok()) {
    status_ = descriptor.status();
  }
  SetValue(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, descriptor.raw());
}

void CudnnDescriptor::Finalize() {
  if (status_.ok()) {
    Keep(cudnn_->finalize(descriptor_), "a description");
  }
}

absl::StatusOr<int64_t> CudnnDescriptor::GetInteger(cudnnBackendAttributeName_t name) const {
  SHOAL_RETURN_IF_ERROR(status_);
  int64_t value = 0;
  int64_t count = 0;
  SHOAL_RETURN_IF_ERROR(CudnnStatus(
      *cudnn_, cudnn_->get_attribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &count, &value),
      "reading an attribute"));
  return value;
}

void CudnnDescriptor::SetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t count, const void* values) {
  if (status_.ok()) {
    Keep(cudnn_->set_attribute(descriptor_, name, type, count, values), "an attribute");
  }
}

void CudnnDescriptor::Keep(cudnnStatus_t status, std::string_view what) {
  if (status_.ok()) {
    status_ = CudnnStatus(*cudnn_, status, what);
  }
}

}  // namespace shoal::worker::cuda
