// Keeps what descriptors are told, as strictly as the library documents it (nothing is set after
// Finalize, all descriptors referred to are final). Recognises attention's pass by the graph's
// tensors and computes it from their dimensions, strides and offsets, as a launch on the stream.
#include "worker/ops/cuda/attention/cudnn/testing/fake_cudnn.h"

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/gpu/kernel/kernel.h"
#include "worker/ops/cuda/attention/cudnn/cudnn_attention.h"
#include "worker/ops/cuda/attention/testing/fused.h"

namespace shoal::worker::cuda {
namespace {

using gpu::Bf16;

FakeCudnn fake;

struct Handle {
  cudaStream_t stream = nullptr;
};

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool final = false;
  std::map<int, std::vector<std::byte>> attributes;

  template <typename T>
  std::span<const T> Get(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? std::span<const T>()
                                     : std::span(reinterpret_cast<const T*>(found->second.data()),
                                                 found->second.size() / sizeof(T));
  }
  const Descriptor* Child(cudnnBackendAttributeName_t name) const {
    const auto children = Get<const Descriptor*>(name);
    return children.empty() ? nullptr : children[0];
  }
};

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // enumerations, float
  }
}

cudnnStatus_t Create(cudnnHandle_t* handle) {
  if (fake.create_status == CUDNN_STATUS_SUCCESS) {
    ++fake.objects;
    *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  }
  return fake.create_status;
}

cudnnStatus_t CreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* to) {
  ++fake.objects;
  *to = new Descriptor{.type = type, .attributes = {}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t SetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  auto& descriptor = *static_cast<Descriptor*>(to);
  if (descriptor.final || count <= 0) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (const auto* child :
         std::span(static_cast<Descriptor* const*>(values), static_cast<size_t>(count))) {
      if (child == nullptr || !child->final) {
        return CUDNN_STATUS_BAD_PARAM;
      }
    }
  }
  const auto* const bytes = static_cast<const std::byte*>(values);
  descriptor.attributes[name].assign(bytes, bytes + static_cast<size_t>(count) * SizeOf(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Finalize(cudnnBackendDescriptor_t to) {
  auto& descriptor = *static_cast<Descriptor*>(to);
  if (descriptor.final) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (descriptor.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    if (fake.plan_status != CUDNN_STATUS_SUCCESS) {
      return fake.plan_status;
    }
    ++fake.plans;
  }
  descriptor.final = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t GetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t, int64_t room, int64_t* count,
                           void* values) {
  const auto& descriptor = *static_cast<Descriptor*>(of);
  if (!descriptor.final || room < 1) {
    return CUDNN_STATUS_NOT_INITIALIZED;
  }
  *count = 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<int64_t*>(values) = fake.workspace_bytes;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    auto* const configuration = *static_cast<Descriptor**>(values);
    configuration->attributes = descriptor.attributes;  // they refer to the graph
    configuration->final = true;
    return CUDNN_STATUS_SUCCESS;
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

// A tensor as a kernel sees it.
struct Placed {
  std::byte* data = nullptr;
  const int32_t* offsets = nullptr;
  int64_t dimensions[4] = {};
  int64_t strides[4] = {};

  int64_t At(int64_t s, int64_t head, int64_t token, int64_t element) const {
    return (offsets == nullptr ? s * strides[0] : offsets[s]) + head * strides[1] +
           token * strides[2] + element * strides[3];
  }
  template <typename T>
  T& Element(int64_t s, int64_t head, int64_t token, int64_t element) const {
    return reinterpret_cast<T*>(data)[At(s, head, token, element)];
  }
  float Value(int64_t s, int64_t head, int64_t token, int64_t element) const {
    return gpu::ToFloat(Element<Bf16>(s, head, token, element));
  }
};

struct Tensors {
  Placed q, k, v, out, log_sum_exp, d_out, d_q, d_k, d_v, d_q_sum, delta;
  const int32_t* counts = nullptr;
  float scale = 1;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Probability of key j for row i of one sequence and head.
struct Row {
  Row(const Tensors& t, int64_t s, int64_t head, int64_t i) : weights(static_cast<size_t>(i) + 1) {
    const int64_t kv = head / (t.q.dimensions[1] / t.k.dimensions[1]);
    double maximum = -INFINITY;
    for (int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (int64_t e = 0; e < t.q.dimensions[3]; ++e) {
        dot += t.q.Value(s, head, i, e) * t.k.Value(s, kv, e, j);  // keys are transposed
      }
      weights[static_cast<size_t>(j)] = dot * t.scale;
      maximum = std::max(maximum, dot * t.scale);
    }
    double sum = 0;
    for (double& weight : weights) {
      weight = std::exp(weight - maximum);
      sum += weight;
    }
    for (double& weight : weights) {
      weight /= sum;
    }
    log_sum_exp = maximum + std::log(sum);
  }
  std::vector<double> weights;
  double log_sum_exp;
};

template <typename Function>
void ForRows(const Tensors& t, const Function& function) {
  for (int64_t s = 0; s < t.q.dimensions[0]; ++s) {
    for (int64_t head = 0; head < t.q.dimensions[1]; ++head) {
      for (int64_t i = 0; i < t.counts[s]; ++i) {
        function(s, head, i, Row(t, s, head, i));
      }
    }
  }
}

SHOAL_KERNEL ForwardKernel(const Tensors t) {
  if (gpu::ThreadIndex() != 0) {
    return;
  }
  std::memset(t.workspace, 0xFF, static_cast<size_t>(t.workspace_bytes));
  const int64_t group = t.q.dimensions[1] / t.v.dimensions[1];
  ForRows(t, [&](int64_t s, int64_t head, int64_t i, const Row& row) {
    for (int64_t e = 0; e < t.q.dimensions[3]; ++e) {
      double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        sum += row.weights[static_cast<size_t>(j)] * t.v.Value(s, head / group, j, e);
      }
      t.out.Element<Bf16>(s, head, i, e) = gpu::FromFloat<Bf16>(static_cast<float>(sum));
    }
    t.log_sum_exp.Element<float>(s, head, i, 0) = static_cast<float>(row.log_sum_exp);
  });
}

SHOAL_KERNEL BackwardKernel(const Tensors t) {
  if (gpu::ThreadIndex() != 0) {
    return;
  }
  std::memset(t.workspace, 0xFF, static_cast<size_t>(t.workspace_bytes));
  const int64_t width = t.q.dimensions[3];
  const int64_t group = t.q.dimensions[1] / t.k.dimensions[1];
  std::map<int64_t, double> d_k;  // by their offset
  std::map<int64_t, double> d_v;
  ForRows(t, [&](int64_t s, int64_t head, int64_t i, const Row& row) {
    const int64_t kv = head / group;
    double delta = 0;
    for (int64_t e = 0; e < width; ++e) {
      delta += t.d_out.Value(s, head, i, e) * t.out.Value(s, head, i, e);
      t.d_q_sum.Element<float>(s, head, i, e) = 0;
    }
    t.delta.Element<float>(s, head, i, 0) = static_cast<float>(delta);
    const double stated = t.log_sum_exp.Element<float>(s, head, i, 0);
    for (int64_t j = 0; j <= i; ++j) {
      // From the kept log_sum_exp, so that a wrong one shows.
      const double p = row.weights[static_cast<size_t>(j)] * std::exp(row.log_sum_exp - stated);
      double d_p = 0;
      for (int64_t e = 0; e < width; ++e) {
        d_p += t.d_out.Value(s, head, i, e) * t.v.Value(s, kv, e, j);  // values are transposed
      }
      const double d_score = p * (d_p - delta) * t.scale;
      for (int64_t e = 0; e < width; ++e) {
        t.d_q_sum.Element<float>(s, head, i, e) +=
            static_cast<float>(d_score * t.k.Value(s, kv, e, j));
        d_k[t.d_k.At(s, kv, j, e)] += d_score * t.q.Value(s, head, i, e);
        d_v[t.d_v.At(s, kv, j, e)] += p * t.d_out.Value(s, head, i, e);
      }
    }
    for (int64_t e = 0; e < width; ++e) {
      t.d_q.Element<Bf16>(s, head, i, e) =
          gpu::FromFloat<Bf16>(t.d_q_sum.Element<float>(s, head, i, e));
    }
  });
  for (const auto& [at, sum] : d_k) {
    reinterpret_cast<Bf16*>(t.d_k.data)[at] = gpu::FromFloat<Bf16>(static_cast<float>(sum));
  }
  for (const auto& [at, sum] : d_v) {
    reinterpret_cast<Bf16*>(t.d_v.data)[at] = gpu::FromFloat<Bf16>(static_cast<float>(sum));
  }
}

// All tensors that a graph's operations name, by id.
void Collect(const Descriptor& descriptor, std::map<int64_t, const Descriptor*>& tensors) {
  if (descriptor.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    tensors[descriptor.Get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)[0]] = &descriptor;
    return;
  }
  for (const auto name :
       {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
        CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
        CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC}) {
    if (const Descriptor* child = descriptor.Child(name)) {
      Collect(*child, tensors);
    }
  }
}

cudnnStatus_t Execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_of,
                      cudnnBackendDescriptor_t pack_of) {
  if (fake.execute_status != CUDNN_STATUS_SUCCESS) {
    return fake.execute_status;
  }
  const auto& pack = *static_cast<Descriptor*>(pack_of);
  const auto& plan = *static_cast<Descriptor*>(plan_of);
  if (!pack.final || !plan.final) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const auto ids = pack.Get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.Get<std::byte*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, std::byte*> at;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (reinterpret_cast<uintptr_t>(pointers[i]) % 4 != 0 ||
        !at.emplace(ids[i], pointers[i]).second) {
      return CUDNN_STATUS_BAD_PARAM;
    }
  }
  const Descriptor* const graph = plan.Child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                                      ->Child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  std::map<int64_t, const Descriptor*> tensors;
  for (const Descriptor* operation : graph->Get<const Descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    Collect(*operation, tensors);
  }
  for (const auto& [id, tensor] : tensors) {
    if (tensor->Get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL).empty() && !at.contains(id)) {
      return CUDNN_STATUS_BAD_PARAM;  // a tensor without an address
    }
  }
  const auto place = [&](int64_t id) {
    const Descriptor& tensor = *tensors.at(id);
    Placed placed{.data = at.at(id)};
    std::memcpy(placed.dimensions, tensor.Get<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS).data(), 32);
    std::memcpy(placed.strides, tensor.Get<int64_t>(CUDNN_ATTR_TENSOR_STRIDES).data(), 32);
    if (const Descriptor* offsets = tensor.Child(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)) {
      placed.offsets = reinterpret_cast<const int32_t*>(
          at.at(offsets->Get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)[0]));
    }
    return placed;
  };
  using Id = AttentionTensor::Id;
  Tensors t{.q = place(Id::kQueries),
            .k = place(Id::kKeys),
            .v = place(Id::kValues),
            .out = place(Id::kOut),
            .log_sum_exp = place(Id::kLogSumExp),
            .counts = reinterpret_cast<const int32_t*>(at.at(Id::kQueryCounts)),
            .workspace = pack.Get<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)[0],
            .workspace_bytes = fake.workspace_bytes};
  std::memcpy(&t.scale, at.at(Id::kScale), sizeof(float));
  if (reinterpret_cast<uintptr_t>(t.workspace) % 256 != 0) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  ++fake.runs;
  const cudaStream_t stream = reinterpret_cast<Handle*>(handle)->stream;
  cudaError_t error = cudaSuccess;
  if (!tensors.contains(Id::kDOut)) {
    error = gpu::Launch(stream, gpu::Grid{1, 1, 1}, gpu::kWarp, 0, ForwardKernel, t);
  } else {
    t.d_out = place(Id::kDOut);
    t.d_q = place(Id::kDQueries);
    t.d_k = place(Id::kDKeys);
    t.d_v = place(Id::kDValues);
    t.d_q_sum = place(Id::kDQueriesSum);
    t.delta = place(Id::kDelta);
    error = gpu::Launch(stream, gpu::Grid{1, 1, 1}, gpu::kWarp, 0, BackwardKernel, t);
  }
  return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace

FakeCudnn& Fake() { return fake; }

Cudnn ResetFakeCudnn() {
  fake = {};
  return Cudnn{.version = [] { return kOldestCudnn; },
               .error_string = [](cudnnStatus_t) { return "CUDNN_STATUS_OF_THE_FAKE"; },
               .last_error_string = [](char* to, size_t room) { to[0] = room > 0 ? 0 : to[0]; },
               .create = Create,
               .destroy =
                   [](cudnnHandle_t handle) {
                     --fake.objects;
                     delete reinterpret_cast<Handle*>(handle);
                     return CUDNN_STATUS_SUCCESS;
                   },
               .set_stream =
                   [](cudnnHandle_t handle, cudaStream_t stream) {
                     reinterpret_cast<Handle*>(handle)->stream = stream;
                     return CUDNN_STATUS_SUCCESS;
                   },
               .create_descriptor = CreateDescriptor,
               .destroy_descriptor =
                   [](cudnnBackendDescriptor_t descriptor) {
                     --fake.objects;
                     delete static_cast<Descriptor*>(descriptor);
                     return CUDNN_STATUS_SUCCESS;
                   },
               .set_attribute = SetAttribute,
               .get_attribute = GetAttribute,
               .finalize = Finalize,
               .execute = Execute};
}

absl::StatusOr<std::unique_ptr<FusedAttention>> FusedAttentionForTest(Device& device,
                                                                      Stream& stream) {
  return CudnnAttention::Create(ResetFakeCudnn(), device, stream);
}

}  // namespace shoal::worker::cuda
