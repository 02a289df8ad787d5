// Compiled without contraction of products and sums (CMakeLists.txt): the CPU has none either.
#include "core/gpu/kernel/flat.h"
#include "server/store/cuda/adamw.h"

namespace shoal::server::cuda {

using namespace gpu;

namespace {

template <typename Wire, int kWidth>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    UpdateKernel(AdamWArgs args, int64_t begin, int64_t count) {
  const int64_t offset = (int64_t{BlockX()} * kBlockThreads + ThreadIndex()) * kWidth;
  if (offset >= count) {
    return;
  }
  const int64_t at = begin + offset;
  float gradient[kWidth];
  float master[kWidth];
  float m[kWidth];
  float v[kWidth];
  LoadFloats<float>(args.gradient, at, gradient);
  LoadFloats<float>(args.master, at, master);
  LoadFloats<float>(args.m, at, m);
  LoadFloats<float>(args.v, at, v);
  const UpdateScalars& s = args.scalars;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float g = gradient[i] * s.clip;
    const float decayed = master[i] * s.decay_factor;
    m[i] = m[i] + (g - m[i]) * s.one_minus_beta1;
    v[i] = v[i] * s.beta2 + g * g * s.one_minus_beta2;
    const float denominator = SquareRoot(v[i]) / s.bias_correction2_sqrt + s.epsilon;
    master[i] = decayed - s.step_size * (m[i] / denominator);
  }
  StoreFloats<float>(m, args.m, at);
  StoreFloats<float>(v, args.v, at);
  StoreFloats<float>(master, args.master, at);
  StoreFloats<Wire>(master, args.wire, at);
}

}  // namespace

cudaError_t AdamW(cudaStream_t stream, const AdamWArgs& args) {
  return WithElement(args.wire_element, [&]<typename Wire>() {
    const bool aligned = Takes(args.gradient, 16) && Takes(args.master, 16) && Takes(args.m, 16) &&
                         Takes(args.v, 16) && Takes(args.wire, kFlatWidth * sizeof(Wire));
    return ForFlat(args.count, aligned, [&](auto width, int64_t begin, int64_t count) {
      return Launch(stream, {.x = DivideUp(count, kBlockThreads * width)}, kBlockThreads, 0,
                    UpdateKernel<Wire, width>, args, begin, count);
    });
  });
}

}  // namespace shoal::server::cuda
