// A graph of operations on tensors, in cuDNN's terms: described here one operation at a time, then
// planned, which finds an engine that runs it whole and compiles its kernels (seconds).
//
// All tensors have four dimensions: sequence, head, token, element. Tensors in memory have ids that
// the caller chooses; those within the graph ("virtual") get their own. The first failure is kept
// until PlanGraph, which returns it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ops/cuda/attention/cudnn/descriptor.h"

namespace shoal::worker::cuda {

using Dimensions = std::array<int64_t, 4>;
// Returns the strides of a tensor with contiguous elements.
Dimensions DenseStrides(const Dimensions& dimensions);

class CudnnGraph {
 public:
  using Tensor = const CudnnDescriptor*;

  // `cudnn` must outlive this.
  explicit CudnnGraph(const Cudnn& cudnn) : cudnn_(&cudnn) {}

  // A tensor in memory. With `offsets`, sequence s starts offsets[s] elements after the tensor's
  // address, whatever the first stride.
  Tensor InMemory(int64_t id, cudnnDataType_t type, const Dimensions& dimensions,
                  const Dimensions& strides, Tensor offsets = nullptr);
  // One number, passed with each run.
  Tensor ByValue(int64_t id, cudnnDataType_t type);

  // Results are virtual, dense and of `type`, unless a tensor for them is given.
  Tensor Pointwise(cudnnPointwiseMode_t mode, Tensor x, cudnnDataType_t type = CUDNN_DATA_FLOAT,
                   Tensor y = nullptr);
  Tensor Pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b,
                   cudnnDataType_t type = CUDNN_DATA_FLOAT, Tensor y = nullptr);
  // condition ? x : otherwise.
  Tensor Select(Tensor condition, Tensor x, Tensor otherwise);
  // Each element's own index along `axis`.
  Tensor Index(Tensor of, int64_t axis);
  // Reduces along every axis in which the result is shorter.
  Tensor Reduce(cudnnReduceTensorOp_t operation, Tensor x, const Dimensions& to,
                Tensor y = nullptr);
  // Swaps rows and columns; `type` is the result's.
  Tensor Transpose(Tensor x, cudnnDataType_t type);

  // How many rows, columns and terms of each sequence's product count: tensors of one number per
  // sequence.
  struct Counts {
    Tensor rows = nullptr;
    Tensor columns = nullptr;
    Tensor terms = nullptr;
  };
  Tensor Multiply(Tensor a, Tensor b, const Counts& counts, Tensor y = nullptr);

  const Cudnn& cudnn() const { return *cudnn_; }
  const absl::Status& status() const { return status_; }
  std::span<const cudnnBackendDescriptor_t> operations() const { return operations_; }

 private:
  struct Shape {
    cudnnDataType_t type;
    Dimensions dimensions;
    Dimensions strides;
    Tensor offsets;
  };
  CudnnDescriptor& Make(cudnnBackendDescriptorType_t type);
  Tensor AddTensor(int64_t id, const Shape& shape, bool is_virtual, bool by_value);
  Tensor Virtual(cudnnDataType_t type, const Dimensions& dimensions);
  const Shape& ShapeOf(Tensor tensor) const;
  Tensor AddPointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor condition, Tensor y,
                      cudnnDataType_t precision, int64_t axis);
  void AddOperation(CudnnDescriptor& operation);

  const Cudnn* cudnn_;
  std::deque<CudnnDescriptor> descriptors_;  // they refer to each other
  std::deque<std::pair<Tensor, Shape>> tensors_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t next_virtual_id_ = 1000;
  absl::Status status_;
};

// An executable plan: an engine for a graph, on one GPU.
class CudnnPlan {
 public:
  // Scratch memory in the device for each run, at a multiple of 256.
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // Puts it on the handle's stream. addresses[i] is where the tensor ids[i] lies: in device memory
  // or, for what is passed by value, in the host's.
  absl::Status Run(cudnnHandle_t handle, std::span<const int64_t> ids,
                   std::span<void* const> addresses, void* workspace) const;

 private:
  friend absl::StatusOr<CudnnPlan> PlanGraph(CudnnGraph, cudnnHandle_t, const CudnnDescriptor*);
  CudnnPlan(CudnnGraph graph, std::vector<CudnnDescriptor> descriptors, int64_t workspace_bytes)
      : graph_(std::move(graph)),
        descriptors_(std::move(descriptors)),
        workspace_bytes_(workspace_bytes) {}

  CudnnGraph graph_;                          // what the descriptors refer to
  std::vector<CudnnDescriptor> descriptors_;  // the last one is the plan
  int64_t workspace_bytes_;
};

// Returns the first engine of the heuristics that can be compiled. `device`, if not null, replaces
// the handle's GPU: the description of one that need not exist.
absl::StatusOr<CudnnPlan> PlanGraph(CudnnGraph graph, cudnnHandle_t handle,
                                    const CudnnDescriptor* device = nullptr);

}  // namespace shoal::worker::cuda
