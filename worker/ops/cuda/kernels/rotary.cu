#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/rotary.h"
#include "worker/ops/cuda/kernels/rotation.h"

namespace shoal::worker::cuda {
namespace {

// Heads that a thread turns by the same angles.
constexpr int kHeads = 4;

struct Work {
  int64_t threads;
  uint32_t chunks;  // of half a head
  uint32_t groups;  // of kHeads heads
};

// The pairs (j, j + D/2) of one chunk of j, of a group of heads of one token.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 3) RotaryKernel(RotaryArgs args, Work work) {
  const int64_t index = int64_t{BlockX()} * kBlockThreads + ThreadIndex();
  if (index >= work.threads) {
    return;
  }
  const auto linear = static_cast<uint32_t>(index);
  const uint32_t chunk = linear % work.chunks;
  const uint32_t group = linear / work.chunks % work.groups;
  const uint32_t token = linear / work.chunks / work.groups;
  const int64_t half = args.head_dim / 2;
  const int64_t column = int64_t{chunk} * kCount;
  const int64_t start = token * args.x.stride + column;

  Packed<T, kCount> firsts[kHeads];
  Packed<T, kCount> seconds[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int64_t head = int64_t{group} * kHeads + i;
    if (head < args.heads) {
      firsts[i] = LoadPacked<T, kCount>(args.x.data, start + head * args.head_dim);
      seconds[i] = LoadPacked<T, kCount>(args.x.data, start + head * args.head_dim + half);
    }
  }
  const Angles<kCount> angles = LoadAngles<kCount>(
      args.cosines, args.sines, args.positions[token] * half + column, args.backward);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int64_t head = int64_t{group} * kHeads + i;
    if (head < args.heads) {
      Turn(angles, firsts[i], seconds[i]);
      StorePacked<T>(firsts[i], args.x.data, start + head * args.head_dim);
      StorePacked<T>(seconds[i], args.x.data, start + head * args.head_dim + half);
    }
  }
}

}  // namespace

cudaError_t Rotary(cudaStream_t stream, const RotaryArgs& args) {
  const int64_t half = args.head_dim / 2;
  // Halves of heads are read apart, so it is they that have to start at multiples of a chunk.
  const ConstView halves = {args.x.data, args.x.element, args.x.rows, half, args.x.stride};
  const bool tables_aligned = Takes(args.cosines, 16) && Takes(args.sines, 16);
  return WithElement(args.x.element, [&]<typename T>() {
    const auto launch = [&](auto count) {
      const int64_t chunks = half / count;
      const int64_t groups = DivideUp(args.heads, kHeads);
      const int64_t threads = args.x.rows * groups * chunks;
      if (threads > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
      }
      const Work work = {threads, static_cast<uint32_t>(chunks), static_cast<uint32_t>(groups)};
      return Launch(stream, {.x = DivideUp(threads, kBlockThreads)}, kBlockThreads, 0,
                    RotaryKernel<T, count>, args, work);
    };
    return tables_aligned ? WithCount<kWide<T>>(launch, halves) : launch(Constant<1>());
  });
}

}  // namespace shoal::worker::cuda
