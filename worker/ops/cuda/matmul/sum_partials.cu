// What splits of k have left behind becomes C: each element is the sum of its partials in order, so
// the bits depend on the number of splits and on nothing else.
#include "gpu/kernel.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/matmul/matmul_kernel.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;

struct PartialsProblem {
  const float* partials;
  int64_t partial_stride;
  int splits;
  int elements;
  int columns;
  void* c;
  int64_t c_stride;
  bool c_is_f32;
  bool accumulate;
  bool four_at_once;  // of C
};

SHOAL_DEVICE void AddWords(float (&sum)[kPerThread], const void* from) {
  uint32_t words[kPerThread];
  LoadWords(words, from);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    sum[i] += FloatOf(words[i]);
  }
}

SHOAL_DEVICE void StoreOne(const PartialsProblem& problem, int64_t offset, float sum) {
  if (problem.c_is_f32) {
    float* c = static_cast<float*>(problem.c) + offset;
    *c = problem.accumulate ? *c + sum : sum;
  } else {
    static_cast<Bf16*>(problem.c)[offset] = FromFloat<Bf16>(sum);
  }
}

SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) Sum(PartialsProblem problem) {
  const int first = (BlockX() * kThreads + ThreadIndex()) * kPerThread;
  if (first >= problem.elements) {
    return;
  }
  // The partials are padded to whole groups of four.
  float sum[kPerThread] = {};
#pragma unroll 4
  for (int split = 0; split < problem.splits; ++split) {
    AddWords(sum, problem.partials + split * problem.partial_stride + first);
  }
  const int row = first / problem.columns;
  const int64_t start = row * problem.c_stride + (first - row * problem.columns);
  if (!problem.four_at_once) {
    for (int i = 0; i < kPerThread && first + i < problem.elements; ++i) {
      const int at = first + i;
      StoreOne(problem, at / problem.columns * problem.c_stride + at % problem.columns, sum[i]);
    }
  } else if (problem.c_is_f32) {
    float* c = static_cast<float*>(problem.c) + start;
    if (problem.accumulate) {
      AddWords(sum, c);
    }
    StoreWords<4>({BitsOf(sum[0]), BitsOf(sum[1]), BitsOf(sum[2]), BitsOf(sum[3])}, c);
  } else {
    StoreWords<2>({PackBf16(sum[0], sum[1]), PackBf16(sum[2], sum[3])},
                  static_cast<Bf16*>(problem.c) + start);
  }
}

}  // namespace

cudaError_t SumPartials(cudaStream_t stream, const MatmulLaunch& launch) {
  PartialsProblem problem = {};
  problem.partials = launch.partials;
  problem.partial_stride = launch.partial_stride();
  problem.splits = launch.splits;
  problem.elements = static_cast<int>(launch.m() * launch.n());
  problem.columns = static_cast<int>(launch.n());
  problem.c = launch.c.data;
  problem.c_stride = launch.c.stride;
  problem.c_is_f32 = launch.c.element == Element::kF32;
  problem.accumulate = launch.accumulate;
  const uintptr_t four_bytes = problem.c_is_f32 ? 16 : 8;
  problem.four_at_once = launch.n() % kPerThread == 0 && launch.c.stride % kPerThread == 0 &&
                         reinterpret_cast<uintptr_t>(launch.c.data) % four_bytes == 0;
  constexpr int kPerBlock = kThreads * kPerThread;
  return Launch(stream, Grid{(problem.elements + kPerBlock - 1) / kPerBlock, 1, 1}, kThreads, 0,
                Sum, problem);
}

}  // namespace shoal::worker::cuda
