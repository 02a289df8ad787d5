#include <cmath>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// One token: heads x [head_dim], of each of which 2 x half turn; `direction` is 1 or -1.
template <typename T>
struct RotateRow {
  SHOAL_INLINE void Run(T* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosines,
                        const float* sines, float direction) {
    for (int64_t head = 0; head < heads; ++head) {
      T* first = x + head * head_dim;
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

void Rotate(Context& context, Matrix x, int64_t heads, int64_t head_dim, const Rotation& rotation,
            float direction) {
  const int64_t dims = rotation.dims_of(head_dim);
  SHOAL_CHECK(dims % 2 == 0 && dims <= head_dim && heads * head_dim <= x.columns);
  const int64_t half = dims / 2;
  WithType(x.dtype, [&]<typename T>() {
    ForRows(context, x.rows, heads * dims, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t offset = rotation.positions[t] * half;
        Dispatch<RotateRow<T>>(x.row<T>(t), heads, head_dim, half, rotation.cosines + offset,
                               rotation.sines + offset, direction);
      }
    });
  });
}

}  // namespace

void RotaryForward(Context& context, Matrix x, int64_t rotated_heads, int64_t head_dim,
                   const Rotation& rotation) {
  Rotate(context, x, rotated_heads, head_dim, rotation, 1.0f);
}

void RotaryBackward(Context& context, Matrix d_x, int64_t rotated_heads, int64_t head_dim,
                    const Rotation& rotation) {
  Rotate(context, d_x, rotated_heads, head_dim, rotation, -1.0f);
}

}  // namespace shoal::worker::cpu
