// Accumulation and AdamW give the bits of the servers' CPU kernels.
#include "server/store/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "core/base/bf16.h"
#include "core/base/random.h"
#include "core/gpu/testing/gpu.h"
#include "core/gpu/testing/on_device.h"
#include "gtest/gtest.h"
#include "server/store/accumulate.h"
#include "server/store/cuda/accumulate.h"
#include "server/store/cuda/adamw.h"

namespace shoal::server::cuda {
namespace {

using gpu::Element;
using gpu::OnDevice;
using gpu::PrepareGpu;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Odd, with several blocks and chunks; and less than a full vector.
constexpr int64_t kCounts[] = {3, 2 * kStatisticsChunk + 1237};

class OptimizerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareGpu(3)) {
      GTEST_SKIP() << "no GPU";
    }
  }

  std::vector<float> Normal(int64_t count, double deviation = 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = static_cast<float>(random_.Normal() * deviation);
    }
    return values;
  }
  static std::vector<BFloat16> Rounded(const std::vector<float>& values) {
    std::vector<BFloat16> rounded(values.size());
    Convert(values, rounded.data());
    return rounded;
  }
  template <typename T>
  static bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  }

  Random random_{21};
};

TEST_F(OptimizerTest, AdamWGivesTheBitsOfTheServers) {
  const server::UpdateScalars scalars = server::MakeUpdateScalars({}, 7, 3e-4, 0.73);
  for (const int64_t count : kCounts) {
    // From the second element on nothing is aligned to 16 bytes.
    for (const size_t first : {0, 1}) {
      const auto size = static_cast<size_t>(count) + first;
      const std::vector<float> gradient = Normal(count + 1);
      const std::vector<float> master = Normal(count + 1);
      const std::vector<float> m = Normal(count + 1, 0.1);
      std::vector<float> v = Normal(count + 1, 0.1);
      for (float& value : v) {
        value *= value;
      }
      for (const bool bf16 : {false, true}) {
        std::vector<float> want_master = master, want_m = m, want_v = v, want_wire(size);
        std::vector<BFloat16> want_bf16(size);
        const server::OptimizerKernels& cpu = server::GetAdamWKernels();
        if (bf16) {
          cpu.bf16(scalars, gradient.data() + first, want_master.data() + first,
                   want_m.data() + first, want_v.data() + first, want_bf16.data() + first, count);
        } else {
          cpu.f32(scalars, gradient.data() + first, want_master.data() + first,
                  want_m.data() + first, want_v.data() + first, want_wire.data() + first, count);
        }
        const OnDevice<float> on_gradient(gradient), on_master(master), on_m(m), on_v(v),
            on_wire(std::vector<float>(size, 0));
        const OnDevice<BFloat16> on_bf16{std::vector<BFloat16>(size)};
        void* wire = bf16 ? static_cast<void*>(on_bf16.data() + first) : on_wire.data() + first;
        ASSERT_EQ(AdamW(nullptr, {.scalars = scalars,
                                  .gradient = on_gradient.data() + first,
                                  .master = on_master.data() + first,
                                  .m = on_m.data() + first,
                                  .v = on_v.data() + first,
                                  .wire = wire,
                                  .wire_element = bf16 ? Element::kBf16 : Element::kF32,
                                  .count = count}),
                  cudaSuccess);
        EXPECT_TRUE(SameBits(on_master.Read(), want_master)) << count << " from " << first;
        EXPECT_TRUE(SameBits(on_m.Read(), want_m));
        EXPECT_TRUE(SameBits(on_v.Read(), want_v));
        EXPECT_TRUE(bf16 ? SameBits(on_bf16.Read(), want_bf16)
                         : SameBits(on_wire.Read(), want_wire));
      }
    }
  }
}

TEST_F(OptimizerTest, SumsOfGradientsGiveTheBitsOfTheServers) {
  const server::AccumulateKernels& cpu = server::GetAccumulateKernels();
  for (const int64_t count : kCounts) {
    std::vector<float> gradient = Normal(count);
    gradient[1] = -0.0f;
    const std::vector<BFloat16> rounded = Rounded(gradient);
    std::vector<float> want = Normal(count);
    const OnDevice<float> sum(want), on_gradient(gradient);
    const OnDevice<BFloat16> on_rounded(rounded);
    cpu.add_f32(gradient.data(), want.data(), count);
    ASSERT_EQ(AddGradient(nullptr, on_gradient.data(), Element::kF32, sum.data(), count),
              cudaSuccess);
    cpu.add_bf16(rounded.data(), want.data(), count);
    ASSERT_EQ(AddGradient(nullptr, on_rounded.data(), Element::kBf16, sum.data(), count),
              cudaSuccess);
    EXPECT_TRUE(SameBits(sum.Read(), want));
    for (const bool bf16 : {false, true}) {
      bf16 ? cpu.set_bf16(rounded.data(), want.data(), count)
           : cpu.set_f32(gradient.data(), want.data(), count);
      const void* from = bf16 ? static_cast<const void*>(on_rounded.data()) : on_gradient.data();
      ASSERT_EQ(
          SetGradient(nullptr, from, bf16 ? Element::kBf16 : Element::kF32, sum.data(), count),
          cudaSuccess);
      EXPECT_TRUE(SameBits(sum.Read(), want));
    }
  }
}

TEST_F(OptimizerTest, ExactSumsGiveTheBitsOfTheServersAndCountWhatTheyRefuse) {
  const server::AccumulateKernels& cpu = server::GetAccumulateKernels();
  for (const int64_t count : kCounts) {
    std::vector<float> gradient = Normal(count, 100);
    gradient[0] = std::numeric_limits<float>::quiet_NaN();
    gradient[1] = kInfinity;
    gradient[2] = server::kExactMaxElement;
    if (count > 1000) {
      gradient[999] = -2 * server::kExactMaxElement;
      gradient[1000] = 1e-13f;
    }
    const std::vector<BFloat16> rounded = Rounded(gradient);
    std::vector<int64_t> want(static_cast<size_t>(count));
    for (int64_t& value : want) {
      value = random_.Between(-1000, 1000) << 35;
    }
    want[2] = server::kExactMaxSum - 2;
    const OnDevice<int64_t> sum(want);
    const OnDevice<int64_t> refused{
        std::vector<int64_t>(static_cast<size_t>(ExactBlocks(count)), 0)};
    const OnDevice<float> on_gradient(gradient);
    const OnDevice<BFloat16> on_rounded(rounded);
    const int64_t want_refused = cpu.add_exact_f32(gradient.data(), want.data(), count) +
                                 cpu.add_exact_bf16(rounded.data(), want.data(), count);
    ASSERT_EQ(AddExactGradient(nullptr, on_gradient.data(), Element::kF32, sum.data(),
                               refused.data(), count),
              cudaSuccess);
    ASSERT_EQ(AddExactGradient(nullptr, on_rounded.data(), Element::kBf16, sum.data(),
                               refused.data(), count),
              cudaSuccess);
    EXPECT_EQ(sum.Read(), want);
    const std::vector<int64_t> counts = refused.Read();
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), want_refused);
    EXPECT_GE(want_refused, 4);

    std::vector<float> want_value(static_cast<size_t>(count));
    cpu.exact_to_float(want.data(), want_value.data(), count);
    const OnDevice<float> value{std::vector<float>(static_cast<size_t>(count), 9)};
    ASSERT_EQ(ExactToFloat(nullptr, sum.data(), value.data(), count), cudaSuccess);
    EXPECT_TRUE(SameBits(value.Read(), want_value));
  }
}

// On GPUs a grid without blocks is an error.
TEST_F(OptimizerTest, NothingIsDoneWithNoElements) {
  EXPECT_EQ(SetGradient(nullptr, nullptr, Element::kF32, nullptr, 0), cudaSuccess);
  EXPECT_EQ(AddExactGradient(nullptr, nullptr, Element::kF32, nullptr, nullptr, 0), cudaSuccess);
  EXPECT_EQ(ExactToFloat(nullptr, nullptr, nullptr, 0), cudaSuccess);
  EXPECT_EQ(GradientStatistics(nullptr, nullptr, nullptr, 0), cudaSuccess);
}

TEST_F(OptimizerTest, StatisticsOfChunksGiveTheBitsOfTheServers) {
  static_assert(kStatisticsChunk == server::kReductionChunk);
  for (const bool finite : {true, false}) {
    const int64_t count = 2 * kStatisticsChunk + 1237;
    std::vector<float> gradient = Normal(count);
    if (!finite) {
      gradient[5] = kInfinity;
      gradient[kStatisticsChunk + 3] = std::numeric_limits<float>::quiet_NaN();
      gradient[static_cast<size_t>(count) - 1] = -kInfinity;
    }
    const OnDevice<float> on_gradient(gradient);
    const OnDevice<ChunkStatistics> chunks{std::vector<ChunkStatistics>(3)};
    ASSERT_EQ(GradientStatistics(nullptr, on_gradient.data(), chunks.data(), count), cudaSuccess);
    const std::vector<ChunkStatistics> have = chunks.Read();
    for (size_t i = 0; i < have.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * kStatisticsChunk;
      const server::GradientStatistics want = server::GetAccumulateKernels().statistics(
          gradient.data() + begin, std::min(kStatisticsChunk, count - begin));
      EXPECT_EQ(have[i].non_finite, want.non_finite);
      if (finite) {
        EXPECT_EQ(have[i].sum_of_squares, want.sum_of_squares);
      } else {
        EXPECT_EQ(std::isfinite(have[i].sum_of_squares), std::isfinite(want.sum_of_squares));
      }
    }
  }
}

}  // namespace
}  // namespace shoal::server::cuda
