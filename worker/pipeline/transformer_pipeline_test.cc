// The transformer in a pipeline: losses and gradients have the bits of one worker alone, for every
// schedule, offload and recompute, whatever is late, with freed memory filled with NaN, on the CPU
// and on a device that computes late too.
#include "worker/pipeline/testing/transformer_pipeline.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/plan/schedule/builders/builders.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/model/testing/small_model.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::worker {
namespace {

StepConfig MakeConfig(bool full, DType compute, int microbatches) {
  const plan::ModelSpec spec = full ? testing_model::FullSpec() : testing_model::SmallSpec(true);
  StepConfig config{.spec = testing_model::WithLayers(spec, 6), .compute = compute};
  config.batches = RandomBatches(config.spec, microbatches, 51, 1, {60, 60});
  return config;
}

// What a stage computes on: in the calling thread, with copies that come late, or all of it late.
enum class Computes { kAtOnce, kLate };

ComputeDevice ComputeDeviceOf(Computes computes, uint64_t seed) {
  if (computes == Computes::kLate) {
    return MakeLateComputeDevice(seed);
  }
  ComputeDevice compute_device;
  compute_device.device =
      MakeCpuDevice(0, {.longest_delay = absl::Microseconds(200), .seed = seed});
  compute_device.ops = MakeCpuOps(*compute_device.device, /*threads=*/1);
  return compute_device;
}

void ExpectSpans(const StageReport& report, const plan::Schedule& schedule, int stage) {
  for (const StageSpan& span : report.spans) {
    EXPECT_GE(span.length, absl::ZeroDuration());
  }
  EXPECT_EQ(std::ranges::count(report.spans, StageSpan::Kind::kCompute, &StageSpan::kind),
            std::ranges::count_if(
                schedule.stages[static_cast<size_t>(stage)],
                [](const plan::Action& action) { return IsCompute(action.operation); }));
  EXPECT_GT(report.compute_seconds, 0);
}

void ExpectBits(const StepConfig& config, const plan::Schedule& schedule, plan::Recompute recompute,
                bool offload, const StepOutcome& alone, Random& random) {
  for (const Computes computes :
       offload ? std::vector{Computes::kAtOnce, Computes::kLate} : std::vector{Computes::kAtOnce}) {
    SCOPED_TRACE(absl::StrCat(schedule.name, offload ? " with offload" : "",
                              computes == Computes::kLate ? ", late" : ""));
    const auto ran = RunPipeline(
        config, schedule, recompute, offload,
        [&](int) { return ComputeDeviceOf(computes, random.Next()); }, random);
    ASSERT_TRUE(ran.ok()) << ran.status();
    EXPECT_TRUE(ran->step == alone);
    for (size_t i = 0; i < ran->reports.size(); ++i) {
      EXPECT_EQ(ran->reports[i].peak_device_bytes, ran->planned.stages[i].peak_device_bytes);
      EXPECT_EQ(ran->reports[i].peak_host_bytes, ran->planned.stages[i].peak_host_bytes);
      ExpectSpans(ran->reports[i], schedule, static_cast<int>(i));
    }
  }
}

class TransformerPipelineTest : public testing::TestWithParam<plan::Recompute> {};

INSTANTIATE_TEST_SUITE_P(Recompute, TransformerPipelineTest,
                         testing::Values(plan::Recompute::kNone, plan::Recompute::kLight,
                                         plan::Recompute::kFull));

TEST_P(TransformerPipelineTest, HasTheBitsOfOneWorker) {
  Random random(52);
  const StepConfig config = MakeConfig(/*full=*/false, DType::kF32, 5);
  const StepOutcome alone = RunAlone(config, MakeCpuComputeDevice(/*threads=*/1)).value();
  EXPECT_GT(alone.losses[0], 0);
  EXPECT_TRUE(alone.finite);
  std::vector<plan::Schedule> schedules = SchedulesOfStages(5);
  schedules.push_back(plan::GPipe(1, 4, 5));
  for (const plan::Schedule& schedule : schedules) {
    for (const bool offload : {false, true}) {
      ExpectBits(config, schedule, GetParam(), offload, alone, random);
    }
  }
}

TEST_P(TransformerPipelineTest, InBf16WithEveryPartOfTheModelToo) {
  Random random(53);
  const StepConfig config = MakeConfig(/*full=*/true, DType::kBF16, 4);
  const StepOutcome alone = RunAlone(config, MakeCpuComputeDevice(/*threads=*/1)).value();
  EXPECT_TRUE(alone.finite);
  for (const plan::Schedule& schedule :
       {plan::UniformPipe(2, 4, 4), plan::VHalf(3, 4), plan::GPipe(1, 3, 4)}) {
    ExpectBits(config, schedule, GetParam(), true, alone, random);
  }
}

}  // namespace
}  // namespace shoal::worker
