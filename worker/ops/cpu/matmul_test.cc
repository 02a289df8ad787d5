#include <cmath>

#include "gtest/gtest.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  DType input, output;
  bool addend = false;
};

void Check(const Product& c, int threads) {
  Random random(static_cast<uint64_t>(c.m * 1000003 + c.n * 1009 + c.k));
  CpuFixture cpu(threads);
  Tensor a = c.transpose_a ? Tensor::Normal(c.input, c.k, c.m, random)
                           : Tensor::Normal(c.input, c.m, c.k, random);
  Tensor b = c.transpose_b ? Tensor::Normal(c.input, c.n, c.k, random)
                           : Tensor::Normal(c.input, c.k, c.n, random);
  Tensor out = Tensor::Normal(c.output, c.m, c.n, random);
  Doubles expected =
      oracle::Matmul(a.doubles(), b.doubles(), c.m, c.n, c.k, c.transpose_a, c.transpose_b);
  Tensor addend = Tensor::Normal(c.output, c.m, c.n, random);
  if (c.accumulate || c.addend) {
    const Doubles added = (c.accumulate ? out : addend).doubles();
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += added[i];
    }
  }
  cpu.ops->Matmul({.a = a.view(),
                   .b = b.view(),
                   .c = out.view(),
                   .transpose_a = c.transpose_a,
                   .transpose_b = c.transpose_b,
                   .accumulate = c.accumulate,
                   .addend = c.addend ? ConstMatrix(addend.view()) : ConstMatrix()});
  ASSERT_TRUE(cpu.ops->Finish().ok());
  oracle::ExpectClose(out.doubles(), expected, c.output == DType::kF32 ? 2e-5 : 1e-2, "matmul");
}

TEST(Matmul, AgreesWithTheOracleForAnyShape) {
  Random random(3);
  for (int round = 0; round < 40; ++round) {
    Product c{.m = random.Between(1, 70), .n = random.Between(1, 70), .k = random.Between(1, 70)};
    c.transpose_a = random.Below(2) == 1;
    c.transpose_b = random.Below(2) == 1;
    c.accumulate = random.Below(2) == 1;
    c.input = random.Below(2) == 1 ? DType::kF32 : DType::kBF16;
    c.addend = !c.accumulate && random.Below(2) == 1;
    c.output = c.accumulate || random.Below(2) == 1 ? DType::kF32 : c.input;
    Check(c, static_cast<int>(random.Between(1, 3)));
  }
}

TEST(Matmul, PiecesOfManyTokensAddUp) {
  Check({1100, 48, 32, false, true, false, DType::kF32, DType::kF32}, 3);
  Check({1100, 200, 32, false, true, false, DType::kF32, DType::kF32, /*addend=*/true}, 3);
  Check({48, 32, 1100, true, false, true, DType::kF32, DType::kF32}, 3);
  Check({48, 32, 1100, true, false, true, DType::kBF16, DType::kF32}, 2);
}

TEST(Matmul, Bf16OfManyBlocks) {
  Check({1100, 100, 96, false, true, false, DType::kBF16, DType::kBF16}, 3);
  Check({1100, 200, 96, false, true, false, DType::kBF16, DType::kBF16, /*addend=*/true}, 3);
  Check({700, 130, 1100, true, false, true, DType::kBF16, DType::kF32}, 2);
  Check({20, 3000, 3000, false, true, false, DType::kBF16, DType::kF32}, 1);  // B in two parts
}

TEST(Matmul, Bf16StridedViewsTouchNothingElse) {
  Random random(5);
  for (const DType output : {DType::kF32, DType::kBF16}) {
    CpuFixture cpu;
    Tensor a = Tensor::Normal(DType::kBF16, 40, 100, random);
    Tensor b = Tensor::Normal(DType::kBF16, 48, 100, random);
    Tensor c = Tensor::Normal(output, 40, 80, random);
    const Doubles before = c.doubles();
    Tensor addend = Tensor::Normal(output, 40, 100, random);
    cpu.ops->Matmul({.a = a.view(),
                     .b = b.view(),
                     .c = c.view().Columns(8, 48),
                     .transpose_b = true,
                     .addend = addend.view().Columns(3, 48)});
    Doubles expected = oracle::Matmul(a.doubles(), b.doubles(), 40, 48, 100, false, true);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += addend.doubles()[i / 48 * 100 + 3 + i % 48];
    }
    const Doubles after = c.doubles();
    for (size_t row = 0; row < 40; ++row) {
      for (size_t column = 0; column < 80; ++column) {
        const bool written = column >= 8 && column < 56;
        EXPECT_NEAR(after[row * 80 + column],
                    written ? expected[row * 48 + column - 8] : before[row * 80 + column],
                    written ? (output == DType::kF32 ? 1e-4 : 0.2) : 0.0);
      }
    }
  }
}

TEST(Matmul, StridedViewsTouchNothingElse) {
  Random random(4);
  CpuFixture cpu;
  Tensor a = Tensor::Normal(DType::kF32, 8, 24, random);
  Tensor b = Tensor::Normal(DType::kF32, 16, 24, random);
  Tensor c = Tensor::Normal(DType::kF32, 8, 40, random);
  const Doubles before = c.doubles();
  cpu.ops->Matmul(
      {.a = a.view(), .b = b.view(), .c = c.view().Columns(8, 16), .transpose_b = true});
  const Doubles expected = oracle::Matmul(a.doubles(), b.doubles(), 8, 16, 24, false, true);
  const Doubles after = c.doubles();
  for (size_t row = 0; row < 8; ++row) {
    for (size_t column = 0; column < 40; ++column) {
      const bool written = column >= 8 && column < 24;
      EXPECT_NEAR(after[row * 40 + column],
                  written ? expected[row * 16 + column - 8] : before[row * 40 + column],
                  written ? 1e-4 : 0.0);
    }
  }
}

TEST(GemmCache, StaysBoundedAndGoesOnWorking) {
  cpu::GemmCache cache(4);
  for (int round = 0; round < 2; ++round) {
    for (int64_t m = 1; m <= 8; ++m) {
      const std::vector<float> ones(64, 1.0f);
      std::vector<float> c(64, 0.0f);
      cache.Run({.m = m, .n = 8, .k = 8, .a_stride = 8, .b_stride = 8, .c_stride = 8}, ones.data(),
                ones.data(), c.data());
      EXPECT_EQ(c[static_cast<size_t>(m * 8 - 1)], 8.0f);
    }
  }
  EXPECT_EQ(cache.compiled(), 16);  // evicted and compiled again
  EXPECT_TRUE(cache.TakeStatus().ok());
}

TEST(GemmCache, KeepsWhatOneDnnRefuses) {
  cpu::GemmCache cache;
  const std::vector<float> data(64, 1.0f);
  std::vector<float> c(64, 0.0f);
  cache.Run({.m = -1, .n = 8, .k = 8, .a_stride = 8, .b_stride = 8, .c_stride = 8}, data.data(),
            data.data(), c.data());
  EXPECT_FALSE(cache.TakeStatus().ok());
  EXPECT_TRUE(cache.TakeStatus().ok());
}

}  // namespace
}  // namespace shoal::worker
