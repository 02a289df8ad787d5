#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/rotary.h"

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
  float cosines[kCount];
  float sines[kCount];
  const int64_t angle = args.positions[token] * half + column;
  constexpr int kLoad = kCount < 4 ? kCount : 4;
#pragma unroll
  for (int j = 0; j < kCount; j += kLoad) {
    float loaded[kLoad];
    LoadFloats<float>(args.cosines, angle + j, loaded);
#pragma unroll
    for (int l = 0; l < kLoad; ++l) {
      cosines[j + l] = loaded[l];
    }
    LoadFloats<float>(args.sines, angle + j, loaded);
#pragma unroll
    for (int l = 0; l < kLoad; ++l) {
      sines[j + l] = args.backward ? -loaded[l] : loaded[l];
    }
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int64_t head = int64_t{group} * kHeads + i;
    if (head < args.heads) {
      float first[kCount];
      float second[kCount];
      Unpack(firsts[i], first);
      Unpack(seconds[i], second);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float a = first[j];
        const float b = second[j];
        first[j] = a * cosines[j] - b * sines[j];
        second[j] = b * cosines[j] + a * sines[j];
      }
      StoreFloats<T>(first, args.x.data, start + head * args.head_dim);
      StoreFloats<T>(second, args.x.data, start + head * args.head_dim + half);
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
