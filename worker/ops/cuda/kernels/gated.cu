#include "core/model/gate.h"
#include "worker/ops/cuda/kernels/activations.h"
#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/gated.h"

namespace shoal::worker::cuda {
namespace {

// Rows whose chunks a thread loads at once, two or three chunks of each.
constexpr int kRows = 2;

// act(g) = g s with s = sigmoid(z); act'(g) = s + g s (1 - s) z'.
template <plan::Gate kGate>
struct Activation;

template <>
struct Activation<plan::Gate::kSilu> {
  SHOAL_DEVICE static float Argument(float g) { return g; }
  SHOAL_DEVICE static float Slope(float /*g*/) { return 1.0f; }
};

// (1 + tanh(z / 2)) / 2 = sigmoid(z).
template <>
struct Activation<plan::Gate::kGeluTanh> {
  static constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;

  SHOAL_DEVICE static float Argument(float g) { return kLinear * (g + kCubic * g * g * g); }
  SHOAL_DEVICE static float Slope(float g) { return kLinear * (1.0f + 3.0f * kCubic * g * g); }
};

template <plan::Gate kGate, typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ForwardKernel(ConstView gate_up, View out, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= out.columns) {
    return;
  }
  Packed<T, kCount> gates[kRows];
  Packed<T, kCount> ups[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < out.rows) {
      const int64_t from = row * gate_up.stride + column;
      gates[i] = LoadPacked<T, kCount>(gate_up.data, from);
      ups[i] = LoadPacked<T, kCount>(gate_up.data, from + out.columns);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < out.rows) {
      float gate[kCount];
      float up[kCount];
      Unpack(gates[i], gate);
      Unpack(ups[i], up);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        up[j] *= gate[j] * Sigmoid(Activation<kGate>::Argument(gate[j]));
      }
      StoreFloats<T>(up, out.data, row * out.stride + column);
    }
  }
}

template <plan::Gate kGate, typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    BackwardKernel(ConstView d_out, ConstView gate_up, View d_gate_up, View out, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= d_out.columns) {
    return;
  }
  Packed<T, kCount> gradients[kRows];
  Packed<T, kCount> gates[kRows];
  Packed<T, kCount> ups[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < d_out.rows) {
      const int64_t from = row * gate_up.stride + column;
      gradients[i] = LoadPacked<T, kCount>(d_out.data, row * d_out.stride + column);
      gates[i] = LoadPacked<T, kCount>(gate_up.data, from);
      ups[i] = LoadPacked<T, kCount>(gate_up.data, from + d_out.columns);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < d_out.rows) {
      float d[kCount];
      float gate[kCount];
      float up[kCount];
      float product[kCount];
      Unpack(gradients[i], d);
      Unpack(gates[i], gate);
      Unpack(ups[i], up);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float s = Sigmoid(Activation<kGate>::Argument(gate[j]));
        const float activated = gate[j] * s;
        const float falling = (1.0f - s) * Activation<kGate>::Slope(gate[j]);
        product[j] = up[j] * activated;
        gate[j] = d[j] * up[j] * (s + activated * falling);
        up[j] = d[j] * activated;
      }
      const int64_t to = row * d_gate_up.stride + column;
      StoreFloats<T>(gate, d_gate_up.data, to);
      StoreFloats<T>(up, d_gate_up.data, to + d_out.columns);
      if (out.data != nullptr) {
        StoreFloats<T>(product, out.data, row * out.stride + column);
      }
    }
  }
}

template <plan::Gate kGate>
cudaError_t Forward(cudaStream_t stream, const ConstView& gate_up, const View& out) {
  return WithElement(out.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          const Tiling tiling = TileMatrix(out.rows, out.columns / count, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0,
                        ForwardKernel<kGate, T, count>, gate_up, out, tiling);
        },
        gate_up, ConstView(out));
  });
}

template <plan::Gate kGate>
cudaError_t Backward(cudaStream_t stream, const ConstView& d_out, const ConstView& gate_up,
                     const View& d_gate_up, const View& out) {
  return WithElement(d_out.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          const Tiling tiling = TileMatrix(d_out.rows, d_out.columns / count, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0,
                        BackwardKernel<kGate, T, count>, d_out, gate_up, d_gate_up, out, tiling);
        },
        d_out, gate_up, ConstView(d_gate_up), ConstView(out));
  });
}

}  // namespace

cudaError_t SwiGluForward(cudaStream_t stream, const ConstView& gate_up, const View& out) {
  return Forward<plan::Gate::kSilu>(stream, gate_up, out);
}
cudaError_t SwiGluBackward(cudaStream_t stream, const ConstView& d_out, const ConstView& gate_up,
                           const View& d_gate_up, const View& out) {
  return Backward<plan::Gate::kSilu>(stream, d_out, gate_up, d_gate_up, out);
}

cudaError_t GeGluForward(cudaStream_t stream, const ConstView& gate_up, const View& out) {
  return Forward<plan::Gate::kGeluTanh>(stream, gate_up, out);
}
cudaError_t GeGluBackward(cudaStream_t stream, const ConstView& d_out, const ConstView& gate_up,
                          const View& d_gate_up, const View& out) {
  return Backward<plan::Gate::kGeluTanh>(stream, d_out, gate_up, d_gate_up, out);
}

}  // namespace shoal::worker::cuda
