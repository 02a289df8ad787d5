#include "worker/paced/emulated_model.h"

#include <set>

#include "core/plan/step/emulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/paced/emulated_device.h"

namespace shoal::worker {
namespace {

// Sleeping advances it, and slightly further than asked, as with real clocks.
class LateClock final : public Clock {
 public:
  explicit LateClock(absl::Duration late) : late_(late) {}
  absl::Time Now() const override { return now_; }
  void SleepFor(absl::Duration duration) override { now_ += duration + late_; }
  void Pass(absl::Duration duration) { now_ += duration; }

 private:
  const absl::Duration late_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST(EmulatedDevice, MakesGoodForWakingUpLate) {
  LateClock clock(absl::Milliseconds(3));
  EmulatedDevice device(clock);
  device.Reset();
  for (int i = 0; i < 100; ++i) {
    device.Run(absl::Milliseconds(10));
  }
  EXPECT_EQ(clock.Now() - absl::UnixEpoch(), absl::Milliseconds(100 * 10 + 3));
}

TEST(EmulatedDevice, CountsWhatTheHostWaitedFor) {
  LateClock clock(absl::ZeroDuration());
  EmulatedDevice device(clock);
  device.Reset();
  device.Run(absl::Milliseconds(10));
  clock.Pass(absl::Milliseconds(5));  // for weights, say
  device.Run(absl::Milliseconds(10));
  EXPECT_EQ(clock.Now() - absl::UnixEpoch(), absl::Milliseconds(25));
}

class EmulatedModelTest : public ::testing::Test {
 protected:
  absl::StatusOr<MicrobatchResult> Run(int worker, const std::vector<int64_t>& lengths) {
    const auto model = MakeEmulatedModel(spec_, options_, worker, clock_);
    PackedBatch batch;
    for (const int64_t length : lengths) {
      batch.AppendNextToken(std::vector<int32_t>(static_cast<size_t>(length), 1));
    }
    return model->Run(batch, 0.25, source_, sink_);
  }

  const plan::ModelSpec spec_ = *plan::NamedShape("tiny");
  const std::vector<plan::UnitSpec> units_ = plan::BuildUnits(spec_);
  plan::EmulateOptions options_ = {
      .shape = "1.5b", .device_flops = 1e14, .time_scale = 0.1, .speeds = {1, 0.5}};
  LateClock clock_{absl::ZeroDuration()};
  MemoryUnitSource source_ = *MemoryUnitSource::Load(
      units_, DType::kF32, [](int, int64_t, std::span<float>) { return absl::OkStatus(); });
  MemoryGradientSink sink_{units_};
};

TEST_F(EmulatedModelTest, TakesAsLongAsTheShapeWould) {
  const plan::CostModel cost = plan::FlopCost(*plan::NamedShape("1.5b"));
  const double seconds = 0.1 * (cost.Sequence(3000) + cost.Sequence(500)) / 1e14;
  for (const int worker : {0, 1, 2}) {
    const absl::Time start = clock_.Now();
    ASSERT_TRUE(Run(worker, {3000, 500}).ok());
    const double expected = worker == 1 ? 2 * seconds : seconds;
    EXPECT_NEAR(absl::ToDoubleSeconds(clock_.Now() - start), expected, 1e-6 * expected + 1e-6);
  }
}

TEST_F(EmulatedModelTest, GradientsSayWhatWasRun) {
  const auto result = Run(0, {30, 11});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 41);
  EXPECT_EQ(result->targets, 39);
  EXPECT_EQ(result->loss_sum, 39);
  for (const plan::UnitSpec& unit : units_) {
    EXPECT_THAT(sink_.gradient(unit.index), testing::Each(0.25F * 39)) << unit.name;
  }
}

TEST_F(EmulatedModelTest, AnEmptyMicrobatchTakesNoTimeAndTouchesEveryUnit) {
  const absl::Time start = clock_.Now();
  const auto result = Run(0, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->targets, 0);
  EXPECT_EQ(clock_.Now(), start);
  EXPECT_EQ(std::set<int>(sink_.done().begin(), sink_.done().end()).size(), units_.size());
  EXPECT_THAT(sink_.gradient(1), testing::Each(0.0F));
}

}  // namespace
}  // namespace shoal::worker
