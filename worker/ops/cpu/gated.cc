#include "core/model/gate.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// act(g) = g s with s = sigmoid(z); act'(g) = s + g s (1 - s) z'.
template <plan::Gate kGate>
struct Activation;

template <>
struct Activation<plan::Gate::kSilu> {
  SHOAL_INLINE float Argument(float g) { return g; }
  SHOAL_INLINE float Slope(float /*g*/) { return 1.0f; }
};

// (1 + tanh(z / 2)) / 2 = sigmoid(z).
template <>
struct Activation<plan::Gate::kGeluTanh> {
  static constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;

  SHOAL_INLINE float Argument(float g) { return kLinear * (g + kCubic * g * g * g); }
  SHOAL_INLINE float Slope(float g) { return kLinear * (1.0f + 3.0f * kCubic * g * g); }
};

template <typename T, plan::Gate kGate>
struct ForwardRow {
  SHOAL_INLINE void Run(const T* gate, const T* up, int64_t columns, T* out) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float g = Load(gate + j);
      Store(g * Sigmoid(Activation<kGate>::Argument(g)) * Load(up + j), out + j);
    }
  }
};

template <typename T, plan::Gate kGate>
struct BackwardRow {
  SHOAL_INLINE void Run(const T* d_out, const T* gate, const T* up, int64_t columns, T* d_gate,
                        T* d_up) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float g = Load(gate + j);
      const float d = Load(d_out + j);
      const float s = Sigmoid(Activation<kGate>::Argument(g));
      const float activated = g * s;
      const float falling = (1.0f - s) * Activation<kGate>::Slope(g);
      Store(d * Load(up + j) * std::fma(activated, falling, s), d_gate + j);
      Store(d * activated, d_up + j);
    }
  }
};

template <plan::Gate kGate>
void Forward(Context& context, ConstMatrix gate_up, Matrix out) {
  const int64_t columns = out.columns;
  SHOAL_CHECK(gate_up.columns == 2 * columns && gate_up.rows == out.rows &&
              gate_up.dtype == out.dtype);
  WithType(out.dtype, [&]<typename T>() {
    ForRows(context, out.rows, 4 * columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = gate_up.row<T>(t);
        Dispatch<ForwardRow<T, kGate>>(gate, gate + columns, columns, out.row<T>(t));
      }
    });
  });
}

template <plan::Gate kGate>
void Backward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
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
          Dispatch<ForwardRow<T, kGate>>(gate, gate + columns, columns, out.row<T>(t));
        }
        T* d_gate = d_gate_up.row<T>(t);
        Dispatch<BackwardRow<T, kGate>>(d_out.row<T>(t), gate, gate + columns, columns, d_gate,
                                        d_gate + columns);
      }
    });
  });
}

}  // namespace

void SwiGluForward(Context& context, ConstMatrix gate_up, Matrix out) {
  Forward<plan::Gate::kSilu>(context, gate_up, out);
}
void SwiGluBackward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                    Matrix out) {
  Backward<plan::Gate::kSilu>(context, d_out, gate_up, d_gate_up, out);
}

void GeGluForward(Context& context, ConstMatrix gate_up, Matrix out) {
  Forward<plan::Gate::kGeluTanh>(context, gate_up, out);
}
void GeGluBackward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                   Matrix out) {
  Backward<plan::Gate::kGeluTanh>(context, d_out, gate_up, d_gate_up, out);
}

}  // namespace shoal::worker::cpu
