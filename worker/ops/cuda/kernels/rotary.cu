#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/rotary.h"
#include "worker/ops/cuda/kernels/rotation.h"

namespace shoal::worker::cuda {
namespace {

// A thread takes the pairs (j, j + R/2) of one chunk of j, for a group of heads of one token.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 3) RotaryKernel(RotaryArgs args, HeadWork work) {
  const int64_t index = int64_t{BlockX()} * kBlockThreads + ThreadIndex();
  if (index >= work.threads) {
    return;
  }
  const HeadPart part = PartOf(work, index, kCount);
  const int64_t half = args.dims / 2;
  const int64_t start = part.token * args.x.stride + part.column;

  Packed<T, kCount> firsts[kHeadsOfThread];
  Packed<T, kCount> seconds[kHeadsOfThread];
#pragma unroll
  for (int i = 0; i < kHeadsOfThread; ++i) {
    const int64_t head = part.head + i;
    if (head < args.heads) {
      firsts[i] = LoadPacked<T, kCount>(args.x.data, start + head * args.head_dim);
      seconds[i] = LoadPacked<T, kCount>(args.x.data, start + head * args.head_dim + half);
    }
  }
  const Angles<kCount> angles = LoadAngles<kCount>(
      args.cosines, args.sines, args.positions[part.token] * half + part.column, args.backward);
#pragma unroll
  for (int i = 0; i < kHeadsOfThread; ++i) {
    const int64_t head = part.head + i;
    if (head < args.heads) {
      Turn(angles, firsts[i], seconds[i]);
      StorePacked<T>(firsts[i], args.x.data, start + head * args.head_dim);
      StorePacked<T>(seconds[i], args.x.data, start + head * args.head_dim + half);
    }
  }
}

}  // namespace

cudaError_t Rotary(cudaStream_t stream, const RotaryArgs& args) {
  const int64_t half = args.dims / 2;
  // Halves of what turns are read separately, so they must start at multiples of a chunk, as heads.
  const ConstView halves = {args.x.data, args.x.element, args.x.rows, half, args.x.stride};
  const ConstView heads = {args.x.data, args.x.element, args.x.rows, args.head_dim, args.x.stride};
  const bool tables_aligned = Takes(args.cosines, 16) && Takes(args.sines, 16);
  return WithElement(args.x.element, [&]<typename T>() {
    const auto launch = [&](auto count) {
      const HeadWork work = HeadWork::Of(args.x.rows, args.heads, half, count);
      if (work.threads > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
      }
      return Launch(stream, {.x = DivideUp(work.threads, kBlockThreads)}, kBlockThreads, 0,
                    RotaryKernel<T, count>, args, work);
    };
    return tables_aligned ? WithCount<kWide<T>>(launch, halves, heads) : launch(Constant<1>());
  });
}

}  // namespace shoal::worker::cuda
