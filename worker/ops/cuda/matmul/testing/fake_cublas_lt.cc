#include "worker/ops/cuda/matmul/testing/fake_cublas_lt.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

FakeCublasLt fake;

struct Handle {};
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType_t type;
  int64_t rows;
  int64_t columns;
  int64_t leading;
};
struct Preference {
  uint64_t workspace = 0;
  std::map<int, uint32_t> words;
};
// Kept in an algorithm: what it was chosen for.
struct Algorithm {
  int32_t offer;
  uint32_t alignment[4];
  uint64_t workspace;
  uint32_t columns;  // of D
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T, typename H, typename... Arguments>
cublasStatus_t New(H* handle, Arguments... arguments) {
  ++fake.objects;
  *handle = reinterpret_cast<H>(new T{arguments...});
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T, typename H>
cublasStatus_t Delete(H handle) {
  --fake.objects;
  delete reinterpret_cast<T*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T, typename H>
const T& Get(H handle) {
  return *reinterpret_cast<const T*>(handle);
}

cublasStatus_t Create(cublasLtHandle_t* handle) {
  if (fake.create_status != CUBLAS_STATUS_SUCCESS) {
    return fake.create_status;
  }
  return New<Handle>(handle);
}

const char* StatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                               : "CUBLAS_STATUS_OTHER";
}

cublasStatus_t CreateDescription(cublasLtMatmulDesc_t* to, cublasComputeType_t compute,
                                 cudaDataType_t scale) {
  return New<Description>(to, compute, scale);
}

cublasStatus_t SetDescription(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                              const void* value, size_t bytes) {
  auto& description = *reinterpret_cast<Description*>(handle);
  if (bytes != sizeof(int32_t)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      std::memcpy(&description.transpose_a, value, bytes);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      std::memcpy(&description.transpose_b, value, bytes);
      return CUBLAS_STATUS_SUCCESS;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t CreateLayout(cublasLtMatrixLayout_t* to, cudaDataType type, uint64_t rows,
                            uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return New<Layout>(to, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading);
}

cublasStatus_t SetPreference(cublasLtMatmulPreference_t handle,
                             cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                             size_t bytes) {
  auto& preference = *reinterpret_cast<Preference*>(handle);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof(uint64_t)) {
    std::memcpy(&preference.workspace, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof(uint32_t)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&preference.words[attribute], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// Whether the operands fit: op(A)[m, k] op(B)[k, n] = D[m, n], of supported types.
bool Fit(const Description& description, const Layout& a, const Layout& b, const Layout& c,
         const Layout& d) {
  const auto turned = [](const Layout& layout, int32_t operation) {
    return operation == CUBLAS_OP_T ? std::pair(layout.columns, layout.rows)
                                    : std::pair(layout.rows, layout.columns);
  };
  const auto [m, k] = turned(a, description.transpose_a);
  const auto [k_of_b, n] = turned(b, description.transpose_b);
  const bool fast = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const bool like_d = c.type == d.type && c.rows == d.rows && c.columns == d.columns;
  return like_d && m == d.rows && n == d.columns && k == k_of_b && a.type == b.type &&
         (d.type == CUDA_R_32F || d.type == a.type) && description.scale == CUDA_R_32F &&
         (description.compute == CUBLAS_COMPUTE_32F || (fast && a.type == CUDA_R_32F));
}

cublasStatus_t Heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                         cublasLtMatmulPreference_t preference_handle, int wanted,
                         cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++fake.heuristics;
  const auto& preference = Get<Preference>(preference_handle);
  if (fake.heuristic_status != CUBLAS_STATUS_SUCCESS) {
    return fake.heuristic_status;
  }
  // Parts of a split k must not be rounded to the type of the result in between.
  if (!Fit(Get<Description>(description), Get<Layout>(a), Get<Layout>(b), Get<Layout>(c),
           Get<Layout>(d)) ||
      preference.words.at(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) !=
          CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *count = std::min(wanted, fake.refused_offers + fake.offers);
  for (int i = 0; i < *count; ++i) {
    Algorithm algorithm = {.offer = i - fake.refused_offers,
                           .workspace = preference.workspace,
                           .columns = static_cast<uint32_t>(Get<Layout>(d).columns)};
    for (int j = 0; j < 4; ++j) {
      algorithm.alignment[j] = preference.words.at(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + j);
    }
    results[i] = {};
    std::memcpy(&results[i].algo, &algorithm, sizeof(algorithm));
    results[i].workspaceSize = preference.workspace;
    results[i].state = algorithm.offer < 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

struct Product {
  Description description;
  Layout layouts[4];
  const void* a;
  const void* b;
  const void* c;
  void* d;
  float alpha;
  float beta;
  bool slow;
};

float ElementAt(const void* data, const Layout& layout, int64_t row, int64_t column) {
  const int64_t at = column * layout.leading + row;
  return layout.type == CUDA_R_32F ? static_cast<const float*>(data)[at]
                                   : ToFloat(static_cast<const Bf16*>(data)[at]);
}

SHOAL_KERNEL Multiply(Product product) {
  const auto& [a, b, c, d] = product.layouts;
  if (ThreadIndex() == 0 && product.slow) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (int64_t at = ThreadIndex(); at < d.rows * d.columns; at += BlockThreads()) {
    const int64_t row = at % d.rows;
    const int64_t column = at / d.rows;
    const bool turn_a = product.description.transpose_a == CUBLAS_OP_T;
    const bool turn_b = product.description.transpose_b == CUBLAS_OP_T;
    double sum = 0;
    for (int64_t l = 0; l < (turn_a ? a.rows : a.columns); ++l) {
      sum += static_cast<double>(ElementAt(product.a, a, turn_a ? l : row, turn_a ? row : l)) *
             ElementAt(product.b, b, turn_b ? column : l, turn_b ? l : column);
    }
    auto value = static_cast<float>(product.alpha * sum);
    if (product.beta != 0) {
      value += product.beta * ElementAt(product.c, c, row, column);
    }
    const int64_t to = column * d.leading + row;
    if (d.type == CUDA_R_32F) {
      static_cast<float*>(product.d)[to] = value;
    } else {
      static_cast<Bf16*>(product.d)[to] = FromFloat<Bf16>(value);
    }
  }
}

cublasStatus_t Matmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                      const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                      cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                      cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t* chosen, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) {
  if (fake.matmul_status != CUBLAS_STATUS_SUCCESS) {
    (void)cudaSetDevice(-1);  // the runtime remembers that, as after a failed launch
    return fake.matmul_status;
  }
  Algorithm algorithm;
  std::memcpy(&algorithm, chosen, sizeof(algorithm));
  const void* matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(matrices[i]) % algorithm.alignment[i] != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const Product product = {.description = Get<Description>(description),
                           .layouts = {Get<Layout>(a_layout), Get<Layout>(b_layout),
                                       Get<Layout>(c_layout), Get<Layout>(d_layout)},
                           .a = a,
                           .b = b,
                           .c = c,
                           .d = d,
                           .alpha = *static_cast<const float*>(alpha),
                           .beta = *static_cast<const float*>(beta),
                           .slow = algorithm.offer != fake.fast_offer};
  const auto& [of_a, of_b, of_c, of_d] = product.layouts;
  if (!Fit(product.description, of_a, of_b, of_c, of_d) || algorithm.columns != of_d.columns ||
      algorithm.workspace > workspace_bytes || reinterpret_cast<uintptr_t>(workspace) % 256 != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++fake.products;
  fake.last_offer = algorithm.offer;
  fake.last_compute_type = product.description.compute;
  const cudaError_t error = Launch(stream, Grid{1, 1, 1}, kWarp, 0, Multiply, product);
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

FakeCublasLt& Fake() { return fake; }

CublasLt ResetFake() {
  fake = {};
  return {.create = Create,
          .destroy = Delete<Handle, cublasLtHandle_t>,
          .version = [] { return size_t{130000}; },
          .status_name = StatusName,
          .matmul = Matmul,
          .create_description = CreateDescription,
          .destroy_description = Delete<Description, cublasLtMatmulDesc_t>,
          .set_description = SetDescription,
          .create_layout = CreateLayout,
          .destroy_layout = Delete<Layout, cublasLtMatrixLayout_t>,
          .create_preference = [](cublasLtMatmulPreference_t* to) { return New<Preference>(to); },
          .destroy_preference = Delete<Preference, cublasLtMatmulPreference_t>,
          .set_preference = SetPreference,
          .heuristic = Heuristic};
}

}  // namespace shoal::worker::cuda
