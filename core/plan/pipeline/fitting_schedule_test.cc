#include "core/plan/pipeline/fitting_schedule.h"

#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

class FittingSchedule : public ::testing::Test {
 protected:
  FittingSchedule() {
    spec_.layers = 10;
    choice_ = {.schedule = {.kind = ScheduleKind::kUniform}, .stages = 2, .chunks = 3};
    for (int i = 0; i < 6; ++i) {
      choice_.split.push_back({.first = 2 * i, .count = 2});
    }
  }

  Schedule Build(const StageBudget& budget) const {
    auto schedule = BuildFittingSchedule(spec_, DType::kF32, choice_, microbatches_, pace_, budget);
    EXPECT_TRUE(schedule.ok()) << Describe(schedule.status());
    return *std::move(schedule);
  }

  // Of the stage that has most.
  ReservedMemory Most(const Schedule& schedule) const {
    ReservedMemory most;
    for (int stage = 0; stage < 2; ++stage) {
      const ReservedMemory own = ReservedBy(
          schedule, stage,
          [&](int chunk, int microbatch) {
            return PlanChunkBytes(spec_, DType::kF32,
                                  choice_.split[schedule.shape.VirtualStageOf(stage, chunk)],
                                  choice_.recompute, microbatches_[microbatch].tokens);
          },
          {});
      most.device = std::max(most.device, own.device);
      most.host = std::max(most.host, own.host);
    }
    return most;
  }

  ModelSpec spec_ = *NamedShape("tiny");
  PipelineChoice choice_;
  PipelinePace pace_{.forward_flops = 1e9,
                     .backward_input_flops = 1e9,
                     .backward_weights_flops = 1e9,
                     .offload_bytes_per_second = 1e9,
                     .reload_bytes_per_second = 1e9};
  std::vector<MicrobatchSize> microbatches_ =
      std::vector<MicrobatchSize>(8, {.tokens = 256, .squared_tokens = 256.0 * 256});
};

TEST_F(FittingSchedule, OffloadsNoMoreThanWasChosenWhereThatFits) {
  const Schedule schedule = Build({});
  EXPECT_EQ(Most(schedule).host, 0);
  EXPECT_GT(Most(schedule).device, 0);
  EXPECT_EQ(Build({.device = Most(schedule).device}).stages, schedule.stages);
}

TEST_F(FittingSchedule, OffloadsMoreWhereAStepNeedsMore) {
  const int64_t without = Most(Build({})).device;
  choice_.offloaded_chunks = 3;
  const int64_t with_all = Most(Build({})).device;
  ASSERT_LT(with_all, without);
  choice_.offloaded_chunks = 0;
  const Schedule less = Build({.device = without - 1});
  EXPECT_LT(Most(less).device, without);
  EXPECT_GT(Most(less).host, 0);
  EXPECT_LE(Most(Build({.device = with_all})).device, with_all);
  // Too little for anything: the runtime refuses it.
  EXPECT_EQ(Most(Build({.device = 1})).device, with_all);
}

// Offloading more would only make it worse.
TEST_F(FittingSchedule, OffloadsNoMoreWhereTheHostIsShort) {
  choice_.offloaded_chunks = 1;
  const Schedule schedule = Build({});
  ASSERT_GT(Most(schedule).host, 0);
  EXPECT_EQ(Build({.device = Most(schedule).device, .host = 1}).stages, schedule.stages);
}

TEST_F(FittingSchedule, CannotOffloadWithoutCopies) {
  const Schedule schedule = Build({});
  pace_.offload_bytes_per_second = pace_.reload_bytes_per_second = 0;
  EXPECT_EQ(Build({.device = 1}).stages, schedule.stages);
}

// Messages between chunks of one stage lie on the device too.
TEST_F(FittingSchedule, CountsMessagesWithinAStage) {
  choice_.stages = 1;
  choice_.schedule = {.kind = ScheduleKind::kInterleaved};
  choice_.split = {{0, 4}, {4, 4}, {8, 4}};
  const Schedule schedule = Build({});
  const auto reserved = [&](int64_t message) {
    return ReservedBy(schedule, 0,
                      [&](int, int) { return ChunkBytes{.activations = 64, .message = message}; },
                      {})
        .device;
  };
  EXPECT_GE(reserved(64), reserved(0) + 2 * 64);
}

}  // namespace
}  // namespace shoal::plan
