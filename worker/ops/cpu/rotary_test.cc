#include <cmath>
#include <numbers>

#include "gtest/gtest.h"
#include "worker/ops/cpu/context.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/rotary_table.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

constexpr int64_t kHeadDim = 8;

TEST(Rotary, TurnsHalvesOfEachHead) {
  Random random(7);
  CpuFixture cpu;
  RotaryTable table(plan::Rope(), kHeadDim, *cpu.device);
  ASSERT_TRUE(table.Reserve(100, cpu.ops->stream()).ok());
  Tensor x = Tensor::Normal(DType::kF32, 3, 24, random);
  const Doubles before = x.doubles();
  const int32_t positions[] = {0, 5, 99};
  cpu.ops->RotaryForward(x.view(), 2, 8, table.At(positions));
  const Doubles after = x.doubles();
  for (size_t t = 0; t < 3; ++t) {
    for (size_t head = 0; head < 3; ++head) {
      for (size_t j = 0; j < 4; ++j) {
        const size_t first = t * 24 + head * 8 + j;
        const double angle =
            head < 2 ? positions[t] * std::pow(10000.0, -2.0 * static_cast<double>(j) / 8) : 0;
        EXPECT_NEAR(after[first],
                    before[first] * std::cos(angle) - before[first + 4] * std::sin(angle), 1e-5);
        EXPECT_NEAR(after[first + 4],
                    before[first + 4] * std::cos(angle) + before[first] * std::sin(angle), 1e-5);
      }
    }
  }
}

TEST(Rotary, TurnsAPartOfEachHeadAsIfItWereAHead) {
  Random random(9);
  CpuFixture cpu;
  RotaryTable whole(plan::Rope(), 6, *cpu.device);
  RotaryTable part({.dims = 6}, kHeadDim, *cpu.device);
  ASSERT_TRUE(whole.Reserve(50, cpu.ops->stream()).ok());
  ASSERT_TRUE(part.Reserve(50, cpu.ops->stream()).ok());
  Tensor x = Tensor::Normal(DType::kF32, 2, 16, random);
  const Doubles before = x.doubles();
  const int32_t positions[] = {7, 49};
  cpu.ops->RotaryForward(x.view(), 2, kHeadDim, part.At(positions));
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t head = 0; head < 2; ++head) {
      const auto first = static_cast<size_t>(t * 16 + head * 8);
      Tensor alone(DType::kF32, 1, 6);
      for (int64_t j = 0; j < 6; ++j) {
        alone.Set(j, before[first + static_cast<size_t>(j)]);
      }
      cpu.ops->RotaryForward(alone.view(), 1, 6, whole.At(&positions[t]));
      Doubles expected = alone.doubles();
      expected.insert(expected.end(), {before[first + 6], before[first + 7]});
      const Doubles after = x.doubles();
      EXPECT_EQ(Doubles(after.begin() + static_cast<int64_t>(first),
                        after.begin() + static_cast<int64_t>(first) + 8),
                expected);
    }
  }
}

// A rotation's gradient is the rotation back: backward undoes forward.
TEST(Rotary, BackwardIsTheInverse) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Random random(8);
    CpuFixture cpu;
    RotaryTable table(plan::Rope(), kHeadDim, *cpu.device);
    ASSERT_TRUE(table.Reserve(64, cpu.ops->stream()).ok());
    Tensor x = Tensor::Normal(dtype, 64, 32, random);
    const Doubles before = x.doubles();
    std::vector<int32_t> positions(64);
    for (int32_t& position : positions) {
      position = static_cast<int32_t>(random.Below(64));
    }
    cpu.ops->RotaryForward(x.view(), 4, 8, table.At(positions.data()));
    ThreadPool pool(2);
    cpu::GemmCache gemm;
    cpu::Context context{pool, gemm};
    cpu::RotaryBackward(context, x.view(), 4, 8, table.At(positions.data()));
    oracle::ExpectClose(x.doubles(), before, oracle::Tolerance(dtype), "rotated there and back");
  }
}

TEST(RotaryTable, GrownIsAsMadeAtOnce) {
  CpuFixture cpu;
  RotaryTable grown(plan::Rope(), kHeadDim, *cpu.device);
  for (const int64_t positions : {3, 4, 50, 20, 64}) {
    ASSERT_TRUE(grown.Reserve(positions, cpu.ops->stream()).ok());
  }
  RotaryTable at_once(plan::Rope(), kHeadDim, *cpu.device);
  ASSERT_TRUE(at_once.Reserve(64, cpu.ops->stream()).ok());
  const size_t count = 64 * 4;
  EXPECT_TRUE(std::equal(grown.cosines(), grown.cosines() + count, at_once.cosines()));
  EXPECT_TRUE(std::equal(grown.sines(), grown.sines() + count, at_once.sines()));
}

TEST(RotaryTable, KeepsWhatItHasWhereTheDeviceIsFull) {
  const std::unique_ptr<Device> device = MakeCpuDevice(1000);
  const std::unique_ptr<Stream> stream = device->NewStream();
  RotaryTable table(plan::Rope(), kHeadDim, *device);
  ASSERT_TRUE(table.Reserve(8, *stream).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.Reserve(100, *stream)));
  EXPECT_EQ(table.cosines()[0], 1.0F);
  EXPECT_EQ(table.sines()[0], 0.0F);
  EXPECT_TRUE(table.Reserve(8, *stream).ok());
}

TEST(RotaryTable, IsMadeAgainForLongSequences) {
  CpuFixture cpu;
  const plan::RopeScaling scaling{.type = plan::RopeType::kLongRope,
                                  .original_max_positions = 10,
                                  .short_divisors = {1, 1, 1, 1},
                                  .long_divisors = {2, 2, 2, 2}};
  RotaryTable table({.scaling = scaling}, kHeadDim, *cpu.device);
  const auto cosine_of_three = [&](int64_t longest) {
    table.ChooseFor(longest);
    EXPECT_TRUE(table.Reserve(4, cpu.ops->stream()).ok());
    return table.cosines()[3 * 4];
  };
  EXPECT_FLOAT_EQ(cosine_of_three(10), std::cos(3.0F));
  EXPECT_FLOAT_EQ(cosine_of_three(11), std::cos(1.5F));
  EXPECT_FLOAT_EQ(cosine_of_three(10), std::cos(3.0F));
}

TEST(RotaryFrequencies, Llama3ScalesSlowOnesAlone) {
  const std::vector<double> plain = RotaryFrequencies({.theta = 500000}, 128);
  const std::vector<double> scaled =
      RotaryFrequencies({.theta = 500000, .scaling = plan::RopeScaling()}, 128);
  for (size_t j = 0; j < plain.size(); ++j) {
    const double wavelength = 2 * std::numbers::pi / plain[j];
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(scaled[j], plain[j]);
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[j], plain[j] / 8);
    } else {
      EXPECT_LT(scaled[j], plain[j]);
      EXPECT_GT(scaled[j], plain[j] / 8);
    }
  }
}

}  // namespace
}  // namespace shoal::worker
