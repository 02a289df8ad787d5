#include "worker/ops/cuda/attention/cudnn/graph.h"

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kAlignment = 16;  // of every tensor in memory

}  // namespace

Dimensions DenseStrides(const Dimensions& dimensions) {
  Dimensions strides;
  int64_t stride = 1;
  for (size_t i = dimensions.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dimensions[i];
  }
  return strides;
}

CudnnDescriptor& CudnnGraph::Make(cudnnBackendDescriptorType_t type) {
  return descriptors_.emplace_back(*cudnn_, type);
}

CudnnGraph::Tensor CudnnGraph::AddTensor(int64_t id, const Shape& shape, bool is_virtual,
                                         bool by_value) {
  CudnnDescriptor& tensor = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, shape.type);
  tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, shape.dimensions);
  tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, shape.strides);
  tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::span<const int64_t>(&id, 1));
  tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::span<const int64_t>(&kAlignment, 1));
  if (is_virtual) {
    tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  }
  if (by_value) {
    tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  }
  if (shape.offsets != nullptr) {
    tensor.Set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, *shape.offsets);
  }
  tensor.Finalize();
  if (status_.ok()) {
    status_ = tensor.status();
  }
  tensors_.emplace_back(&tensor, shape);
  return &tensor;
}

CudnnGraph::Tensor CudnnGraph::InMemory(int64_t id, cudnnDataType_t type,
                                        const Dimensions& dimensions, const Dimensions& strides,
                                        Tensor offsets) {
  return AddTensor(id, {type, dimensions, strides, offsets}, false, false);
}

CudnnGraph::Tensor CudnnGraph::ByValue(int64_t id, cudnnDataType_t type) {
  constexpr Dimensions kOne = {1, 1, 1, 1};
  return AddTensor(id, {type, kOne, kOne, nullptr}, false, true);
}

CudnnGraph::Tensor CudnnGraph::Virtual(cudnnDataType_t type, const Dimensions& dimensions) {
  return AddTensor(next_virtual_id_++, {type, dimensions, DenseStrides(dimensions), nullptr}, true,
                   false);
}

const CudnnGraph::Shape& CudnnGraph::ShapeOf(Tensor tensor) const {
  for (const auto& [known, shape] : tensors_) {
    if (known == tensor) {
      return shape;
    }
  }
  SHOAL_CHECK(false && "a tensor of another graph");
  __builtin_unreachable();
}

void CudnnGraph::AddOperation(CudnnDescriptor& operation) {
  operation.Finalize();
  if (status_.ok()) {
    status_ = operation.status();
  }
  operations_.push_back(operation.raw());
}

CudnnGraph::Tensor CudnnGraph::AddPointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b,
                                            Tensor condition, Tensor y, cudnnDataType_t precision,
                                            int64_t axis) {
  CudnnDescriptor& what = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  what.Set(CUDNN_ATTR_POINTWISE_MODE, mode);
  what.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) {
    what.Set(CUDNN_ATTR_POINTWISE_AXIS, std::span<const int64_t>(&axis, 1));
  }
  what.Finalize();
  CudnnDescriptor& operation = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x);
  if (b != nullptr) {
    operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  }
  if (condition != nullptr) {
    operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
  }
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1.0f);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1.0f);
  AddOperation(operation);
  return y;
}

CudnnGraph::Tensor CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, Tensor x, cudnnDataType_t type,
                                         Tensor y) {
  return Pointwise(mode, x, nullptr, type, y);
}

CudnnGraph::Tensor CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b,
                                         cudnnDataType_t type, Tensor y) {
  if (y == nullptr) {
    y = Virtual(type, ShapeOf(x).dimensions);
  }
  return AddPointwise(mode, x, b, nullptr, y,
                      type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, 0);
}

CudnnGraph::Tensor CudnnGraph::Select(Tensor condition, Tensor x, Tensor otherwise) {
  return AddPointwise(CUDNN_POINTWISE_BINARY_SELECT, x, otherwise, condition,
                      Virtual(CUDNN_DATA_FLOAT, ShapeOf(x).dimensions), CUDNN_DATA_FLOAT, 0);
}

CudnnGraph::Tensor CudnnGraph::Index(Tensor of, int64_t axis) {
  return AddPointwise(CUDNN_POINTWISE_GEN_INDEX, of, nullptr, nullptr,
                      Virtual(CUDNN_DATA_INT32, ShapeOf(of).dimensions), CUDNN_DATA_INT32, axis);
}

CudnnGraph::Tensor CudnnGraph::Reduce(cudnnReduceTensorOp_t operation, Tensor x,
                                      const Dimensions& to, Tensor y) {
  if (y == nullptr) {
    y = Virtual(CUDNN_DATA_FLOAT, to);
  }
  CudnnDescriptor& what = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  what.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  what.Set(CUDNN_ATTR_REDUCTION_OPERATOR, operation);
  what.Finalize();
  CudnnDescriptor& reduction = Make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, what);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y);
  AddOperation(reduction);
  return y;
}

CudnnGraph::Tensor CudnnGraph::Transpose(Tensor x, cudnnDataType_t type) {
  Shape shape = ShapeOf(x);
  shape.type = type;
  std::swap(shape.dimensions[2], shape.dimensions[3]);
  std::swap(shape.strides[2], shape.strides[3]);
  const Tensor y = AddTensor(next_virtual_id_++, shape, true, false);
  CudnnDescriptor& operation = Make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y);
  AddOperation(operation);
  return y;
}

CudnnGraph::Tensor CudnnGraph::Multiply(Tensor a, Tensor b, const Counts& counts, Tensor y) {
  if (y == nullptr) {
    Dimensions dimensions = ShapeOf(a).dimensions;
    dimensions[3] = ShapeOf(b).dimensions[3];
    y = Virtual(CUDNN_DATA_FLOAT, dimensions);
  }
  CudnnDescriptor& what = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  what.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  what.Finalize();
  CudnnDescriptor& product = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, what);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *y);
  if (counts.rows != nullptr) {
    product.Set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, *counts.rows);
  }
  if (counts.columns != nullptr) {
    product.Set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, *counts.columns);
  }
  if (counts.terms != nullptr) {
    product.Set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, *counts.terms);
  }
  AddOperation(product);
  return y;
}

absl::StatusOr<CudnnPlan> PlanGraph(CudnnGraph graph, cudnnHandle_t handle,
                                    const CudnnDescriptor* device) {
  SHOAL_RETURN_IF_ERROR(graph.status());
  const Cudnn& cudnn = graph.cudnn();
  std::vector<CudnnDescriptor> made;
  made.reserve(4);  // they refer to each other
  CudnnDescriptor& whole = made.emplace_back(cudnn, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  whole.SetDescriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph.operations());
  if (handle != nullptr) {
    whole.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  }
  whole.Finalize();
  CudnnDescriptor heuristics(cudnn, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  if (device != nullptr) {
    heuristics.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device);
  }
  heuristics.Finalize();
  SHOAL_RETURN_IF_ERROR(heuristics.status());

  constexpr int64_t kMostEngines = 8;
  std::vector<CudnnDescriptor> engines;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < kMostEngines; ++i) {
    raw.push_back(engines.emplace_back(cudnn, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
    SHOAL_RETURN_IF_ERROR(engines.back().status());
  }
  int64_t count = 0;
  SHOAL_RETURN_IF_ERROR(CudnnStatus(
      cudnn,
      cudnn.get_attribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                          CUDNN_TYPE_BACKEND_DESCRIPTOR, kMostEngines, &count, raw.data()),
      "asking for engines"));
  absl::Status why = Unimplemented("cuDNN: no engine runs this");
  for (size_t i = 0; i < static_cast<size_t>(count) && i < engines.size(); ++i) {
    CudnnDescriptor plan(cudnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engines[i]);
    if (handle != nullptr) {
      plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
    }
    if (device != nullptr) {
      plan.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *device);
    }
    plan.Finalize();
    const absl::StatusOr<int64_t> workspace =
        plan.GetInteger(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    if (workspace.ok()) {
      made.push_back(std::move(engines[i]));
      made.push_back(std::move(plan));
      return CudnnPlan(std::move(graph), std::move(made), *workspace);
    }
    why = workspace.status();
  }
  return why;
}

absl::Status CudnnPlan::Run(cudnnHandle_t handle, std::span<const int64_t> ids,
                            std::span<void* const> addresses, void* workspace) const {
  SHOAL_CHECK(ids.size() == addresses.size());
  const Cudnn& cudnn = graph_.cudnn();
  CudnnDescriptor pack(cudnn, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, std::span<void* const>(&workspace, 1));
  pack.Finalize();
  SHOAL_RETURN_IF_ERROR(pack.status());
  return CudnnStatus(cudnn, cudnn.execute(handle, descriptors_.back().raw(), pack.raw()),
                     "running a plan");
}

}  // namespace shoal::worker::cuda
