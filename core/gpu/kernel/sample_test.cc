// The primitives of kernel.h, on a GPU: a fake, or real if there is one.
#include "core/gpu/kernel/sample.h"

#include <cuda_bf16.h>

#include <cstring>
#include <vector>

#include "core/base/random.h"
#include "core/gpu/testing/gpu.h"
#include "core/gpu/testing/on_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

class SampleTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    if (!PrepareGpu(GetParam())) {
      GTEST_SKIP() << "no GPU that can be used";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, SampleTest, testing::Range(uint64_t{1}, uint64_t{9}));

TEST_P(SampleTest, ThreadsThatNeverWait) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  std::vector<float> many(1000);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<float>(i);
  }
  const OnDevice<float> from(many);
  const OnDevice<float> to(std::vector<float>(1000, -1));
  ASSERT_EQ(sample::AddTo(nullptr, to.data(), from.data(), 0.5f, 999), cudaSuccess);
  const std::vector<float> result = to.Read();
  for (size_t i = 0; i < 999; ++i) {
    ASSERT_EQ(result[i], many[i] + 0.5f);
  }
  EXPECT_EQ(result[999], -1);
}

TEST_P(SampleTest, BlocksWaitAndShareMemory) {
  constexpr int64_t kRows = 7;
  constexpr int64_t kColumns = 333;
  Random random(GetParam());
  std::vector<float> x(kRows * kColumns);
  std::vector<double> expected(kRows);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(random.Between(-100, 100));
    expected[i / kColumns] += x[i];
  }
  const OnDevice<float> from(x);
  const OnDevice<float> to(std::vector<float>(kRows, -1));
  ASSERT_EQ(sample::SumRows(nullptr, to.data(), from.data(), kRows, kColumns), cudaSuccess);
  EXPECT_THAT(to.Read(), testing::Pointwise(testing::Eq(), expected));
}

TEST_P(SampleTest, Shuffles) {
  std::vector<int> values(32);
  for (size_t i = 0; i < 32; ++i) {
    values[i] = static_cast<int>(i * i);
  }
  const OnDevice<int> from(values);
  const OnDevice<int> to(std::vector<int>(64, -1));
  for (const size_t mask : {1u, 7u, 16u, 31u}) {
    ASSERT_EQ(sample::ShuffleLanes(nullptr, to.data(), from.data(), static_cast<int>(mask)),
              cudaSuccess);
    const std::vector<int> result = to.Read();
    for (size_t lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(result[lane], values[lane ^ mask]);
      EXPECT_EQ(result[32 + lane], values[(lane + 1) % 32]);
    }
  }
}

struct Operands {
  std::vector<uint16_t> a;
  std::vector<uint16_t> b;
  std::vector<double> product;
};

Operands RandomOperands(uint64_t seed) {
  Random random(seed);
  std::vector<double> a(16 * 16);
  std::vector<double> b(16 * 8);
  const auto draw = [&random](std::vector<double>& values) {
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const __nv_bfloat16 value = __float2bfloat16_rn(static_cast<float>(random.Normal()));
      std::memcpy(&bits[i], &value, 2);
      values[i] = __bfloat162float(value);
    }
    return bits;
  };
  Operands operands{.a = draw(a), .b = draw(b), .product = std::vector<double>(16 * 8)};
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      for (size_t k = 0; k < 16; ++k) {
        operands.product[row * 8 + column] += a[row * 16 + k] * b[k * 8 + column];
      }
    }
  }
  return operands;
}

TEST_P(SampleTest, CopiesLoadsAndMultiplies) {
  const Operands operands = RandomOperands(GetParam());
  const OnDevice<uint16_t> a(operands.a);
  const OnDevice<uint16_t> b(operands.b);
  const OnDevice<float> d(std::vector<float>(16 * 8, -1));
  ASSERT_EQ(sample::Product(nullptr, d.data(), a.data(), b.data(), true), cudaSuccess);
  EXPECT_THAT(d.Read(), testing::Pointwise(testing::DoubleNear(1e-4), operands.product));
}

TEST_P(SampleTest, BlocksHaveTheSharedMemoryThatTheyAskFor) {
  const OnDevice<uint32_t> to(std::vector<uint32_t>(32, 0));
  for (const int64_t bytes : {1024, 40 << 10, 48 << 10, 99 << 10, 64 << 10}) {
    ASSERT_EQ(sample::TouchShared(nullptr, to.data(), bytes), cudaSuccess);
    EXPECT_THAT(to.Read(), testing::Each(static_cast<uint32_t>(bytes)));
  }
  EXPECT_EQ(sample::TouchShared(nullptr, to.data(), 1 << 20), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it was told";
}

}  // namespace
}  // namespace shoal::gpu
