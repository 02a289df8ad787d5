#include "worker/ops/cpu/attention_blocks.h"

#include <cstring>

#include "core/base/bytes.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

template <typename T>
struct ScaledRow {
  SHOAL_INLINE void Run(const float* in, int64_t columns, float factor, T* out) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(in[j] * factor, out + j);
    }
  }
};

struct CapRow {
  SHOAL_INLINE void Run(float* products, int64_t columns, float scale, float cap) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      products[j] = SoftCap(products[j] * scale, cap);
    }
  }
};

}  // namespace

AttentionBlocking::AttentionBlocking(const AttentionShape& attention_shape)
    : shape(attention_shape), group(attention_shape.heads / attention_shape.kv_heads) {
  constexpr int64_t kQueryUnit = 16;
  queries = std::max(kQueryUnit, RoundUp(kRowsAimedAt / group, kQueryUnit));
  rows = queries * group;
  scale = static_cast<float>(shape.scale());
  softcap = static_cast<float>(shape.softcap);
}

float AttentionBlocking::CapScores(float* products, int64_t count) const {
  if (softcap == 0) {
    return scale;
  }
  Dispatch<CapRow>(products, count, scale, softcap);
  return 1.0f;
}

GemmShape AttentionBlocking::Scores(DType input, int64_t keys) const {
  return {.m = rows,
          .n = keys,
          .k = shape.head_dim,
          .a_stride = shape.head_dim,
          .b_stride = shape.head_dim,
          .c_stride = keys,
          .input = input,
          .output = DType::kF32,
          .transpose_b = true};
}

GemmShape AttentionBlocking::WeightedSum(DType input, int64_t keys, bool accumulate) const {
  return {.m = rows,
          .n = shape.head_dim,
          .k = keys,
          .a_stride = keys,
          .b_stride = shape.head_dim,
          .c_stride = shape.head_dim,
          .input = input,
          .output = DType::kF32,
          .accumulate = accumulate};
}

template <typename T>
void CopyQueryBlock(const AttentionBlocking& blocking, ConstMatrix from, int64_t first_head,
                    int64_t first, int64_t last, T* block) {
  const int64_t width = blocking.shape.head_dim;
  for (int64_t head = 0; head < blocking.group; ++head) {
    const int64_t column = (first_head + head) * width;
    for (int64_t i = 0; i < blocking.queries; ++i, block += width) {
      if (first + i < last) {
        std::memcpy(block, from.row<T>(first + i) + column, static_cast<size_t>(width) * sizeof(T));
      } else {
        std::memset(static_cast<void*>(block), 0, static_cast<size_t>(width) * sizeof(T));
      }
    }
  }
}

template <typename T>
void StoreQueryBlock(const AttentionBlocking& blocking, const float* block, const float* factors,
                     int64_t first_head, int64_t first, int64_t last, Matrix to) {
  const int64_t width = blocking.shape.head_dim;
  const int64_t count = std::min(blocking.queries, last - first);
  for (int64_t head = 0; head < blocking.group; ++head) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = head * blocking.queries + i;
      const float factor = factors == nullptr ? 1.0f : factors[row];
      Dispatch<ScaledRow<T>>(block + row * width, width, factor,
                             to.row<T>(first + i) + (first_head + head) * width);
    }
  }
}

template <typename T>
void CopyKeys(ConstMatrix from, int64_t column, int64_t head_dim, SequenceRange range,
              int64_t padded, T* keys) {
  for (int64_t i = 0; i < range.length(); ++i) {
    std::memcpy(keys + i * head_dim, from.row<T>(range.begin + i) + column,
                static_cast<size_t>(head_dim) * sizeof(T));
  }
  std::memset(static_cast<void*>(keys + range.length() * head_dim), 0,
              static_cast<size_t>((padded - range.length()) * head_dim) * sizeof(T));
}

void ZeroRowsFrom(Context& context, Matrix matrix, int64_t first) {
  if (first < matrix.rows) {
    Zero(context, matrix.Rows(first, matrix.rows - first));
  }
}

#define SHOAL_INSTANTIATE(T)                                                                      \
  template void CopyQueryBlock<T>(const AttentionBlocking&, ConstMatrix, int64_t, int64_t,        \
                                  int64_t, T*);                                                   \
  template void StoreQueryBlock<T>(const AttentionBlocking&, const float*, const float*, int64_t, \
                                   int64_t, int64_t, Matrix);                                     \
  template void CopyKeys<T>(ConstMatrix, int64_t, int64_t, SequenceRange, int64_t, T*)
SHOAL_INSTANTIATE(float);
SHOAL_INSTANTIATE(BFloat16);
#undef SHOAL_INSTANTIATE

}  // namespace shoal::worker::cpu
