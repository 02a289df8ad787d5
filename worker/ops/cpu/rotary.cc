#include <cmath>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// One token: heads x [head_dim]; `direction` is 1 or -1.
template <typename T>
struct RotateRow {
  SHOAL_INLINE void Run(T* x, int64_t heads, int64_t half, const float* cosines, const float* sines,
                        float direction) {
    for (int64_t head = 0; head < heads; ++head) {
      T* first = x + head * 2 * half;
      T* second = first + half;
#pragma omp simd
      for (int64_t j = 0; j < half; ++j) {
        const float a = Load(first + j);
        const float b = Load(second + j);
        const float sine = sines[j] * direction;
        Store(a * cosines[j] - b * sine, first + j);
        Store(b * cosines[j] + a * sine, second + j);
      }
    }
  }
};

void Rotate(Context& context, Matrix x, int64_t heads, int64_t head_dim, const int32_t* positions,
            const float* cosines, const float* sines, float direction) {
  SHOAL_CHECK(head_dim % 2 == 0 && heads * head_dim <= x.columns);
  const int64_t half = head_dim / 2;
  WithType(x.dtype, [&]<typename T>() {
    ForRows(context, x.rows, heads * head_dim, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t offset = positions[t] * half;
        Dispatch<RotateRow<T>>(x.row<T>(t), heads, half, cosines + offset, sines + offset,
                               direction);
      }
    });
  });
}

}  // namespace

void RotaryForward(Context& context, Matrix x, int64_t rotated_heads, int64_t head_dim,
                   const int32_t* positions, const float* cosines, const float* sines) {
  Rotate(context, x, rotated_heads, head_dim, positions, cosines, sines, 1.0f);
}

void RotaryBackward(Context& context, Matrix d_x, int64_t rotated_heads, int64_t head_dim,
                    const int32_t* positions, const float* cosines, const float* sines) {
  Rotate(context, d_x, rotated_heads, head_dim, positions, cosines, sines, -1.0f);
}

}  // namespace shoal::worker::cpu
