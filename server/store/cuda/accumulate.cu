// Compiled without contraction of products and sums (CMakeLists.txt): the CPU has none either.
#include "core/gpu/kernel/flat.h"
#include "server/store/cuda/accumulate.h"

namespace shoal::server::cuda {

using namespace gpu;

namespace {

// Vectors of kWidth elements that a thread has in flight.
constexpr int kChunks = 4;

template <typename T, int kWidth, bool kAdds>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    AddKernel(const void* gradient, float* accumulator, int64_t begin, int64_t count) {
  const int64_t first = (int64_t{BlockX()} * kBlockThreads * kChunks + ThreadIndex()) * kWidth;
  constexpr int64_t kStep = kBlockThreads * kWidth;
  Packed<T, kWidth> gradients[kChunks];
  Packed<float, kWidth> sums[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t offset = first + i * kStep;
    if (offset < count) {
      gradients[i] = LoadPacked<T, kWidth>(gradient, begin + offset);
      if constexpr (kAdds) {
        sums[i] = LoadPacked<float, kWidth>(accumulator, begin + offset);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t offset = first + i * kStep;
    if (offset < count) {
      float added[kWidth];
      float sum[kWidth] = {};
      Unpack(gradients[i], added);
      if constexpr (kAdds) {
        Unpack(sums[i], sum);
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum[j] += added[j];
      }
      StoreFloats<float>(sum, accumulator, begin + offset);
    }
  }
}

template <bool kAdds>
cudaError_t Accumulate(cudaStream_t stream, const void* gradient, Element element,
                       float* accumulator, int64_t count) {
  return WithElement(element, [&]<typename T>() {
    const bool aligned = Takes(accumulator, 16) && Takes(gradient, kFlatWidth * sizeof(T));
    return ForFlat(count, aligned, [&](auto width, int64_t begin, int64_t part) {
      return Launch(stream, {.x = DivideUp(part, kBlockThreads * kChunks * width)}, kBlockThreads,
                    0, AddKernel<T, width, kAdds>, gradient, accumulator, begin, part);
    });
  });
}

// 1.5 x 2^52: adding it leaves a double of magnitude below 2^51, rounded to an integer, in the low
// bits (server/store/accumulate.cc).
constexpr double kRounder = 0x1.8p52;
constexpr float kMaxElement = 0x1p20f;
constexpr int64_t kMaxSum = int64_t{1} << 62;

SHOAL_DEVICE int64_t RoundSmall(double value) {
  return static_cast<int64_t>((value + kRounder) - kRounder);
}

// round(value x 2^40) for |value| <= 2^20: the part above 2^-20 first, then the rest.
SHOAL_DEVICE int64_t ToFixed(float value) {
  const double wide = value;
  const double high = (wide * 0x1p20 + kRounder) - kRounder;
  const double rest = wide - high * 0x1p-20;  // exact
  return static_cast<int64_t>(high) * (int64_t{1} << 20) + RoundSmall(rest * 0x1p40);
}

template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    AddExactKernel(const void* gradient, int64_t* accumulator, int64_t* refused, int64_t count) {
  SHOAL_SHARED int shared[kBlockWarps];
  const int64_t first = int64_t{BlockX()} * kChunks * kBlockThreads + ThreadIndex();
  float values[kChunks] = {};
  int64_t before[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = first + i * kBlockThreads;
    if (at < count) {
      values[i] = ToFloat(static_cast<const T*>(gradient)[at]);
      before[i] = accumulator[at];
    }
  }
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = first + i * kBlockThreads;
    // False for NaN.
    const bool in_range = values[i] <= kMaxElement && values[i] >= -kMaxElement;
    const int64_t after = before[i] + ToFixed(in_range ? values[i] : 0.0f);
    const bool fits = after < kMaxSum && after > -kMaxSum;
    if (at < count) {
      accumulator[at] = fits ? after : before[i];
      mine += in_range && fits ? 0 : 1;
    }
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    mine += ShuffleXor(mine, distance);
  }
  if (LaneIndex() == 0) {
    shared[WarpIndex()] = mine;
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    int64_t all = refused[BlockX()];
    for (int warp = 0; warp < kBlockWarps; ++warp) {
      all += shared[warp];
    }
    refused[BlockX()] = all;
  }
}

SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ExactToFloatKernel(const int64_t* accumulator, float* value, int64_t count) {
  const int64_t first = int64_t{BlockX()} * kChunks * kBlockThreads + ThreadIndex();
  int64_t sums[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = first + i * kBlockThreads;
    sums[i] = at < count ? accumulator[at] : 0;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = first + i * kBlockThreads;
    if (at < count) {
      value[at] = static_cast<float>(static_cast<double>(sums[i]) * 0x1p-40);
    }
  }
}

// Half a warp per chunk: as many partial sums as the CPU keeps, each over every 16th element in
// order, added up in order.
constexpr int kPartials = 16;
constexpr int kChunksPerBlock = kBlockThreads / kPartials;

SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    StatisticsKernel(const float* gradient, ChunkStatistics* chunks, int64_t count) {
  SHOAL_SHARED double sums[kBlockThreads];
  SHOAL_SHARED int non_finite[kBlockThreads];
  constexpr int kInFlight = 16;
  const int64_t chunk = int64_t{BlockX()} * kChunksPerBlock + ThreadIndex() / kPartials;
  const int64_t begin = chunk * kStatisticsChunk;
  const int64_t end = begin + kStatisticsChunk < count ? begin + kStatisticsChunk : count;
  double sum = 0;
  int bad = 0;
  for (int64_t start = begin + ThreadIndex() % kPartials; start < end;
       start += kInFlight * kPartials) {
    float values[kInFlight] = {};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = start + i * kPartials;
      if (at < end) {
        values[i] = gradient[at];
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      // Adding the zeros beyond the end changes no bit: sums of squares are never -0.
      const double wide = values[i];
      sum += wide * wide;
      bad += (BitsOf(values[i]) & 0x7F800000u) == 0x7F800000u ? 1 : 0;
    }
  }
  sums[ThreadIndex()] = sum;
  non_finite[ThreadIndex()] = bad;
  SyncBlock();
  if (ThreadIndex() % kPartials == 0 && begin < count) {
    ChunkStatistics all;
    for (int i = 0; i < kPartials; ++i) {
      all.sum_of_squares += sums[ThreadIndex() + i];
      all.non_finite += non_finite[ThreadIndex() + i];
    }
    chunks[chunk] = all;
  }
}

}  // namespace

cudaError_t SetGradient(cudaStream_t stream, const void* gradient, Element element,
                        float* accumulator, int64_t count) {
  return Accumulate<false>(stream, gradient, element, accumulator, count);
}

cudaError_t AddGradient(cudaStream_t stream, const void* gradient, Element element,
                        float* accumulator, int64_t count) {
  return Accumulate<true>(stream, gradient, element, accumulator, count);
}

int64_t ExactBlocks(int64_t count) { return DivideUp(count, kChunks * kBlockThreads); }

cudaError_t AddExactGradient(cudaStream_t stream, const void* gradient, Element element,
                             int64_t* accumulator, int64_t* refused, int64_t count) {
  if (count == 0) {  // a grid has blocks
    return cudaSuccess;
  }
  return WithElement(element, [&]<typename T>() {
    return Launch(stream, {.x = ExactBlocks(count)}, kBlockThreads, 0, AddExactKernel<T>, gradient,
                  accumulator, refused, count);
  });
}

cudaError_t ExactToFloat(cudaStream_t stream, const int64_t* accumulator, float* value,
                         int64_t count) {
  if (count == 0) {
    return cudaSuccess;
  }
  return Launch(stream, {.x = ExactBlocks(count)}, kBlockThreads, 0, ExactToFloatKernel,
                accumulator, value, count);
}

cudaError_t GradientStatistics(cudaStream_t stream, const float* gradient, ChunkStatistics* chunks,
                               int64_t count) {
  if (count == 0) {
    return cudaSuccess;
  }
  const int64_t blocks = DivideUp(DivideUp(count, kStatisticsChunk), kChunksPerBlock);
  return Launch(stream, {.x = blocks}, kBlockThreads, 0, StatisticsKernel, gradient, chunks, count);
}

}  // namespace shoal::server::cuda
