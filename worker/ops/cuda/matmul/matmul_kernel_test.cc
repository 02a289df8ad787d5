// Our own kernels against the oracle: on the fake GPU, and on a real one where there is one.
#include "worker/ops/cuda/matmul/matmul_kernel.h"

#include "core/base/bytes.h"
#include "core/gpu/testing/gpu.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/kernels/views.h"
#include "worker/ops/cuda/matmul/testing/products.h"

namespace shoal::worker::cuda {
namespace {

class MatmulKernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareGpu(1)) {
      GTEST_SKIP() << "no GPU that can be used";
    }
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }

  using LaunchFunction = cudaError_t (*)(cudaStream_t, const MatmulLaunch&);
  std::vector<std::byte> Check(const MatmulCase& c, LaunchFunction function,
                               MatmulTile tile = MatmulTile::k64x64, int64_t k_per_split = 0) {
    return ExpectProduct(c, random_, stream_, [&](const MatmulArgs& args) {
      MatmulLaunch launch = {.a = ToView(args.a), .b = ToView(args.b)};
      launch.c = ToView(args.c);
      launch.transpose_a = args.transpose_a;
      launch.transpose_b = args.transpose_b;
      launch.added = ToView(args.accumulate ? ConstMatrix(args.c) : args.addend);
      launch.tile = tile;
      void* partials = nullptr;
      if (k_per_split > 0 && k_per_split < c.k) {
        launch.k_per_split = k_per_split;
        launch.splits = static_cast<int>((c.k + k_per_split - 1) / k_per_split);
        ASSERT_EQ(
            cudaMalloc(&partials, static_cast<size_t>(launch.splits * launch.partial_stride() * 4)),
            cudaSuccess);
        launch.partials = static_cast<float*>(partials);
      }
      ASSERT_EQ(function(stream_, launch), cudaSuccess);
      if (launch.splits > 1) {
        ASSERT_EQ(SumPartials(stream_, launch), cudaSuccess);
      }
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      if (partials != nullptr) {
        ASSERT_EQ(cudaFree(partials), cudaSuccess);
      }
    });
  }

  Random random_{11};
  cudaStream_t stream_ = nullptr;
};

TEST_F(MatmulKernelTest, SmallTilesOfAnySize) {
  for (int round = 0; round < 40; ++round) {
    Check(RandomCase(random_, 200, true), AlignedMatmul, MatmulTile::k64x64);
  }
}

TEST_F(MatmulKernelTest, LargeTilesOfAnySize) {
  for (int round = 0; round < 10; ++round) {
    Check(RandomCase(random_, 300, true), AlignedMatmul, MatmulTile::k128x128);
    Check(RandomCase(random_, 300, true), AlignedMatmul, MatmulTile::k128x256);
  }
}

// Logits' gradients times the head's matrix: rows of an odd vocabulary, padded.
TEST_F(MatmulKernelTest, InnerDimensionsThatAreNoMultipleOfEight) {
  for (const int64_t k : {1, 7, 63, 65, 257, 321}) {
    const int64_t gap = RoundUp(k, 8) - k;
    for (const MatmulTile tile : {MatmulTile::k64x64, MatmulTile::k128x128, MatmulTile::k128x256}) {
      Check({.m = 70, .n = 136, .k = k, .a_gap = gap}, AlignedMatmul, tile, k > 256 ? 128 : 0);
    }
  }
}

TEST_F(MatmulKernelTest, ManyTilesInBands) {
  Check({.m = 64 * 9 + 3, .n = 64 * 3, .k = 24, .transpose_b = true}, AlignedMatmul);
}

TEST_F(MatmulKernelTest, ManyStages) {
  Check({.m = 64, .n = 64, .k = 64 * 11, .transpose_b = true}, AlignedMatmul);
  Check({.m = 64, .n = 64, .k = 64 * 10 + 1, .transpose_a = true, .accumulate = true},
        AlignedMatmul);
}

TEST_F(MatmulKernelTest, SplitsAddUpInEveryType) {
  for (int round = 0; round < 30; ++round) {
    MatmulCase c = RandomCase(random_, 100, true);
    c.k = random_.Between(9, 60) * 8;
    c.a_gap = c.transpose_a ? c.a_gap : 8;
    c.b_gap = c.transpose_b ? 16 : c.b_gap;
    Check(c, AlignedMatmul, round % 2 == 0 ? MatmulTile::k64x64 : MatmulTile::k128x128,
          random_.Between(1, 3) * 64);
  }
}

TEST_F(MatmulKernelTest, UnalignedOperandsOfAnySize) {
  for (int round = 0; round < 40; ++round) {
    MatmulCase c = RandomCase(random_, 150, false);
    c.input = DType::kBF16;
    c.output = c.accumulate || round % 2 == 0 ? DType::kF32 : DType::kBF16;
    Check(c, UnalignedMatmul, MatmulTile::k64x64, round % 3 == 0 ? 64 : 0);
  }
}

TEST_F(MatmulKernelTest, Fp32OfAnySize) {
  for (int round = 0; round < 40; ++round) {
    MatmulCase c = RandomCase(random_, 150, false);
    c.input = DType::kF32;
    c.output = DType::kF32;
    Check(c, PlainMatmul);
  }
}

TEST_F(MatmulKernelTest, SameInputSameBits) {
  const MatmulCase c = {.m = 136, .n = 72, .k = 640, .transpose_a = true};
  random_ = Random(5);
  const auto first = Check(c, AlignedMatmul, MatmulTile::k64x64, 128);
  ASSERT_TRUE(PrepareGpu(99));  // blocks in another order
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  random_ = Random(5);
  EXPECT_EQ(Check(c, AlignedMatmul, MatmulTile::k64x64, 128), first);
}

}  // namespace
}  // namespace shoal::worker::cuda
