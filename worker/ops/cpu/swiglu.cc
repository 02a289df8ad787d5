#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

template <typename T>
struct ForwardRow {
  SHOAL_INLINE void Run(const T* gate, const T* up, int64_t columns, T* out) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float g = Load(gate + j);
      Store(g * Sigmoid(g) * Load(up + j), out + j);
    }
  }
};

// silu'(g) = s + g s (1 - s) with s = sigmoid(g).
template <typename T>
struct BackwardRow {
  SHOAL_INLINE void Run(const T* d_out, const T* gate, const T* up, int64_t columns, T* d_gate,
                        T* d_up) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float g = Load(gate + j);
      const float d = Load(d_out + j);
      const float s = Sigmoid(g);
      const float silu = g * s;
      Store(d * Load(up + j) * std::fma(silu, 1.0f - s, s), d_gate + j);
      Store(d * silu, d_up + j);
    }
  }
};

}  // namespace

void SwiGluForward(Context& context, ConstMatrix gate_up, Matrix out) {
  const int64_t columns = out.columns;
  SHOAL_CHECK(gate_up.columns == 2 * columns && gate_up.rows == out.rows &&
              gate_up.dtype == out.dtype);
  WithType(out.dtype, [&]<typename T>() {
    ForRows(context, out.rows, 4 * columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = gate_up.row<T>(t);
        Dispatch<ForwardRow<T>>(gate, gate + columns, columns, out.row<T>(t));
      }
    });
  });
}

void SwiGluBackward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                    Matrix out) {
  const int64_t columns = d_out.columns;
  SHOAL_CHECK(gate_up.columns == 2 * columns && gate_up.rows == d_out.rows &&
              gate_up.dtype == d_out.dtype);
  SHOAL_CHECK(SameShape(gate_up, d_gate_up));
  SHOAL_CHECK(out.data == nullptr || SameShape(out, d_out));
  WithType(d_out.dtype, [&]<typename T>() {
    ForRows(context, d_out.rows, 4 * columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = gate_up.row<T>(t);
        if (out.data != nullptr) {
          Dispatch<ForwardRow<T>>(gate, gate + columns, columns, out.row<T>(t));
        }
        T* d_gate = d_gate_up.row<T>(t);
        Dispatch<BackwardRow<T>>(d_out.row<T>(t), gate, gate + columns, columns, d_gate,
                                 d_gate + columns);
      }
    });
  });
}

}  // namespace shoal::worker::cpu
