// Makes C from the splits of k: each element is the sum of its partials in order, so the bits
// depend only on the number of splits.
#include "core/gpu/kernel/packed.h"
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
  const void* added;  // of C's type; null: nothing
  int64_t added_stride;
  bool c_is_f32;
  bool four_at_once;  // of C and what is added
};

template <typename T>
SHOAL_DEVICE void AddFour(float (&sum)[kPerThread], const void* from, int64_t offset) {
  float more[kPerThread];
  LoadFloats<T>(from, offset, more);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    sum[i] += more[i];
  }
}

template <typename T>
SHOAL_DEVICE void StoreOne(const PartialsProblem& problem, int row, int column, float sum) {
  if (problem.added != nullptr) {
    sum += ToFloat(static_cast<const T*>(problem.added)[row * problem.added_stride + column]);
  }
  static_cast<T*>(problem.c)[row * problem.c_stride + column] = FromFloat<T>(sum);
}

// Makes four sums, the first for element `first` of C.
template <typename T>
SHOAL_DEVICE void StoreFour(const PartialsProblem& problem, int first, float (&sum)[kPerThread]) {
  if (!problem.four_at_once) {
    for (int i = 0; i < kPerThread && first + i < problem.elements; ++i) {
      const int at = first + i;
      StoreOne<T>(problem, at / problem.columns, at % problem.columns, sum[i]);
    }
    return;
  }
  const int row = first / problem.columns;
  const int column = first - row * problem.columns;
  if (problem.added != nullptr) {
    AddFour<T>(sum, problem.added, row * problem.added_stride + column);
  }
  StoreFloats<T>(sum, problem.c, row * problem.c_stride + column);
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
    AddFour<float>(sum, problem.partials, split * problem.partial_stride + first);
  }
  if (problem.c_is_f32) {
    StoreFour<float>(problem, first, sum);
  } else {
    StoreFour<Bf16>(problem, first, sum);
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
  problem.added = launch.added.data;
  problem.added_stride = launch.added.stride;
  const uintptr_t four_bytes = problem.c_is_f32 ? 16 : 8;
  const auto fours = [&](const ConstView& view) {
    return view.stride % kPerThread == 0 &&
           reinterpret_cast<uintptr_t>(view.data) % four_bytes == 0;
  };
  problem.four_at_once =
      launch.n() % kPerThread == 0 && fours(ConstView(launch.c)) && fours(launch.added);
  constexpr int kPerBlock = kThreads * kPerThread;
  return Launch(stream, Grid{(problem.elements + kPerBlock - 1) / kPerBlock, 1, 1}, kThreads, 0,
                Sum, problem);
}

}  // namespace shoal::worker::cuda
