// A descriptor of cuDNN's graph interface, as an object: created, given its attributes, finalized,
// destroyed.
//
// Keeps the first failure and does nothing after it, so that a graph is checked once, at its end
// (`status`). Attributes that are descriptors themselves must outlive this.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "worker/ops/cuda/attention/cudnn/cudnn.h"

namespace shoal::worker::cuda {

absl::Status CudnnStatus(const Cudnn& cudnn, cudnnStatus_t status, std::string_view what);

class CudnnDescriptor {
 public:
  // `cudnn` must outlive this.
  CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  void SetDescriptors(cudnnBackendAttributeName_t name,
                      std::span<const cudnnBackendDescriptor_t> descriptors);
  void Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& descriptor);
  void Set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    SetValue(name, CUDNN_TYPE_DATA_TYPE, value);
  }
  void Set(cudnnBackendAttributeName_t name, cudnnPointwiseMode_t value) {
    SetValue(name, CUDNN_TYPE_POINTWISE_MODE, value);
  }
  void Set(cudnnBackendAttributeName_t name, cudnnReduceTensorOp_t value) {
    SetValue(name, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, value);
  }
  void Set(cudnnBackendAttributeName_t name, cudnnBackendHeurMode_t value) {
    SetValue(name, CUDNN_TYPE_HEUR_MODE, value);
  }
  void Set(cudnnBackendAttributeName_t name, cudnnHandle_t value) {
    SetValue(name, CUDNN_TYPE_HANDLE, value);
  }
  void Set(cudnnBackendAttributeName_t name, bool value) {
    SetValue(name, CUDNN_TYPE_BOOLEAN, value);
  }
  void Set(cudnnBackendAttributeName_t name, float value) {
    SetValue(name, CUDNN_TYPE_FLOAT, value);
  }
  void Set(cudnnBackendAttributeName_t name, std::span<const int64_t> values) {
    SetMany(name, CUDNN_TYPE_INT64, values);
  }
  void Set(cudnnBackendAttributeName_t name, std::span<void* const> values) {
    SetMany(name, CUDNN_TYPE_VOID_PTR, values);
  }
  void Set(cudnnBackendAttributeName_t name, std::string_view text) {
    SetMany(name, CUDNN_TYPE_CHAR, std::span<const char>(text));
  }
  void Finalize();

  // Reads one integer of a final descriptor.
  absl::StatusOr<int64_t> GetInteger(cudnnBackendAttributeName_t name) const;

  // Null if it could not be made.
  cudnnBackendDescriptor_t raw() const { return descriptor_; }
  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  void SetValue(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    SetMany(name, type, std::span<const T>(&value, 1));
  }
  template <typename T>
  void SetMany(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::span<const T> values) {
    SetRaw(name, type, static_cast<int64_t>(values.size()), values.data());
  }
  void SetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              const void* values);
  void Keep(cudnnStatus_t status, std::string_view what);

  const Cudnn* cudnn_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  absl::Status status_;
};

}  // namespace shoal::worker::cuda
