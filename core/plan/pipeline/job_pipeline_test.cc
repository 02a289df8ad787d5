#include "core/plan/pipeline/job_pipeline.h"

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/pipeline/chosen_pipeline.h"
#include "core/plan/pipeline/fitting_schedule.h"
#include "core/plan/schedule/schedule_queues.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::HasSubstr;

Job PipelineJob() {
  Job job;
  job.train.compute = ComputeType::kBf16;
  job.cluster.pipeline.stages = 4;
  job.cluster.pipeline.chunks = 2;
  job.cluster.pipeline.pace = {
      .forward_flops = 1e12, .backward_input_flops = 1e12, .backward_weights_flops = 1e12};
  return job;
}

const std::vector<MicrobatchSize> kMicrobatches(6, {.tokens = 1000, .squared_tokens = 1e6});

TEST(HeaviestStep, HasAsManyMicrobatchesAsAnyGroupAndTheMostAttention) {
  const auto microbatch = [](int64_t tokens, double squares) {
    return Microbatch{.tokens = tokens, .squared_tokens = squares};
  };
  const std::vector<StepPlan> steps = {
      {.workers = {{microbatch(10, 100)}, {microbatch(5, 9), microbatch(4, 16)}}},
      {.workers = {{}, {microbatch(9, 200)}}}};
  EXPECT_EQ(HeaviestStep(steps, 16),
            (std::vector<MicrobatchSize>(2, {.tokens = 16, .squared_tokens = 200})));
  EXPECT_EQ(HeaviestStep({}, 16), std::vector<MicrobatchSize>(1, {.tokens = 16}));
}

TEST(PipelineRequestOf, AsksForWhatTheKeysSay) {
  const ModelSpec spec = *NamedShape("25m");
  Job job = PipelineJob();
  auto request = PipelineRequestOf(spec, job, kMicrobatches);
  ASSERT_TRUE(request.ok()) << Describe(request.status());
  EXPECT_EQ(request->compute, DType::kBF16);
  EXPECT_EQ(request->stages, 4);
  EXPECT_EQ(request->chunks, 2);
  EXPECT_EQ(request->microbatches, kMicrobatches);
  EXPECT_FALSE(request->schedule.has_value());
  EXPECT_FALSE(request->recompute.has_value());
  EXPECT_EQ(request->offload.value, OffloadedChunks::kAuto);
  EXPECT_TRUE(request->budgets.empty());

  job.cluster.pipeline.schedule = "V-Half";
  job.cluster.pipeline.recompute = Recompute::kLight;
  job.cluster.pipeline.offload.value = 1;
  job.cluster.pipeline.device_memory = 10 * kMiB;
  job.cluster.pipeline.host_memory = 20 * kMiB;
  request = PipelineRequestOf(spec, job, kMicrobatches);
  ASSERT_TRUE(request.ok()) << Describe(request.status());
  EXPECT_EQ(request->schedule->kind, ScheduleKind::kVHalf);
  EXPECT_EQ(request->recompute, Recompute::kLight);
  EXPECT_EQ(request->offload.value, 1);
  ASSERT_EQ(request->budgets.size(), 4U);
  EXPECT_EQ(request->budgets[3].device, 10 * kMiB);
  EXPECT_EQ(request->budgets[3].host, 20 * kMiB);
}

TEST(PipelineRequestOf, RefusesWhatCannotBeByItsKeys) {
  const ModelSpec spec = *NamedShape("25m");
  const auto refusal = [&](const Job& job) {
    const absl::Status status = PipelineRequestOf(spec, job, kMicrobatches).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return std::string(Message(status));
  };
  Job job = PipelineJob();
  job.cluster.pipeline.chunks = spec.layers;
  EXPECT_THAT(refusal(job), HasSubstr(fmt::format("4 stages of {} chunks are more", spec.layers)));
  job = PipelineJob();
  job.cluster.pipeline.pace = {};
  EXPECT_THAT(refusal(job), HasSubstr("cluster.pipeline.pace was not measured"));
  for (const char* schedule : {"ZB-H1", "1F1B", "GIS(1)"}) {
    job = PipelineJob();
    job.cluster.pipeline.schedule = schedule;
    EXPECT_THAT(refusal(job), HasSubstr("cluster.pipeline.schedule contradicts"));
    EXPECT_THAT(refusal(job), HasSubstr(schedule));
  }
  job.cluster.pipeline.schedule = "ZB-V";
  EXPECT_TRUE(PipelineRequestOf(spec, job, kMicrobatches).ok());
  job.cluster.pipeline.chunks = 1;
  EXPECT_THAT(refusal(job), HasSubstr("two chunks for each stage"));
  job.cluster.pipeline.schedule = "2F2B";
  EXPECT_THAT(refusal(job), HasSubstr("cluster.pipeline.schedule: "));
}

// From GPU to GPU each message has a place at both ends, which exceeds what copies from and to the
// host take; which of the two it will be is not known yet.
TEST(StageNeedsOf, CountsMessagesOnTheirWayAmongAGpusMemory) {
  const ModelSpec spec = *NamedShape("25m");
  Job job = PipelineJob();
  job.data.microbatch_tokens = 1000;
  const auto plan = PlanPipeline(*PipelineRequestOf(spec, job, kMicrobatches));
  ASSERT_TRUE(plan.ok()) << Describe(plan.status());
  const auto own_of_stage = [&](DeviceKind device, size_t stage) {
    job.train.device = device;
    const auto needs = StageNeedsOf(spec, job, plan->chosen().choice, kMicrobatches);
    EXPECT_TRUE(needs.ok()) << Describe(needs.status());
    return (*needs)[stage].own;
  };
  const auto schedule =
      BuildFittingSchedule(spec, DType::kBF16, plan->chosen().choice, kMicrobatches,
                           job.cluster.pipeline.pace, BudgetOf(job.cluster.pipeline));
  ASSERT_TRUE(schedule.ok()) << Describe(schedule.status());
  int64_t places = 0;
  for (const MessageQueue& queue : MessageQueues(*schedule, kDeviceMessages)) {
    places += (queue.from == 1 ? queue.send_buffers : 0) + (queue.to == 1 ? queue.slots : 0);
  }
  EXPECT_GT(places, 2 * kDeviceMessages);
  // Of a stage in the middle, which has no head.
  EXPECT_EQ(own_of_stage(DeviceKind::kCuda, 1),
            own_of_stage(DeviceKind::kCpu, 1) +
                places * (64 + MessageBytes(spec, DType::kBF16, 1000)) + 2 * SharedGpuBytes(1));
}

// With what DeviceMemoryOn leaves, the plan fits a GPU; without that limit it would not.
TEST(DeviceMemoryOn, LeavesAGpuRoomForAllElse) {
  const ModelSpec spec = *NamedShape("25m");
  Job job = PipelineJob();
  job.cluster.pipeline.pace.offload_bytes_per_second = 1e9;
  job.cluster.pipeline.pace.reload_bytes_per_second = 1e9;
  job.train.device = DeviceKind::kCuda;
  job.train.residency = Residency::kStep;
  job.train.push = PushPolicy::kStep;
  job.data.microbatch_tokens = 8192;
  const std::vector<MicrobatchSize> microbatches(6, {.tokens = 8192, .squared_tokens = 6.4e7});
  const auto planned = [&](int64_t gpu_bytes) -> absl::StatusOr<MemoryPlan> {
    SHOAL_ASSIGN_OR_RETURN(const PipelineRequest request,
                           PipelineRequestOf(spec, job, microbatches));
    SHOAL_ASSIGN_OR_RETURN(const PipelinePlan plan, PlanPipeline(request));
    SHOAL_ASSIGN_OR_RETURN(const auto stages,
                           StageNeedsOf(spec, job, plan.chosen().choice, microbatches));
    if (job.cluster.pipeline.device_memory == 0) {
      SHOAL_ASSIGN_OR_RETURN(job.cluster.pipeline.device_memory,
                             DeviceMemoryOn(spec, job, gpu_bytes, stages));
    }
    return PlanMemory(spec, job, /*servers=*/1, /*workers=*/4, {.gpu_bytes = gpu_bytes}, stages);
  };
  const auto free = planned(100 * kGiB);
  ASSERT_TRUE(free.ok()) << Describe(free.status());
  int64_t most = 0;
  for (const WorkerMemory& stage : free->stages) {
    most = std::max(most, stage.gpu.total());
  }
  job.cluster.pipeline.device_memory = 0;
  const int64_t less = most * 8 / 10;
  EXPECT_TRUE(absl::IsResourceExhausted(planned(kMiB).status()));
  ASSERT_EQ(job.cluster.pipeline.device_memory, 0);
  ASSERT_TRUE(absl::IsResourceExhausted(planned(less).status())) << "planned without a budget";
  ASSERT_GT(job.cluster.pipeline.device_memory, 0);
  const auto fits = planned(less);
  EXPECT_TRUE(fits.ok()) << Describe(fits.status());
}

// Enums have the same numbers in messages.
TEST(ChosenPipeline, TravelsAsAMessage) {
  const ModelSpec spec = *NamedShape("25m");
  Job job = PipelineJob();
  job.cluster.pipeline.schedule = "GIS(3)";
  for (const auto& [name, recompute] : kRecomputeNames) {
    job.cluster.pipeline.recompute = recompute;
    const auto plan = PlanPipeline(*PipelineRequestOf(spec, job, kMicrobatches));
    ASSERT_TRUE(plan.ok()) << Describe(plan.status());
    const ChosenPipeline chosen = {plan->chosen().choice, kMicrobatches};
    proto::PipelinePlan message = ToMessage(chosen);
    EXPECT_EQ(message.schedule(), proto::PipelinePlan::SCHEDULE_GROUPED);
    EXPECT_EQ(message.group(), 3);
    job.data.microbatch_tokens = kMicrobatches.front().tokens;
    const auto read = FromMessage(message, spec, job);
    ASSERT_TRUE(read.ok()) << Describe(read.status());
    EXPECT_EQ(read->choice, chosen.choice);
    EXPECT_EQ(read->heaviest, chosen.heaviest);
    message.set_stages(message.stages() + 1);
    EXPECT_TRUE(absl::IsInvalidArgument(FromMessage(message, spec, job).status()));
  }
  EXPECT_EQ(static_cast<int>(ScheduleKind::kAccumulation), proto::PipelinePlan::Schedule_MAX);
}

}  // namespace
}  // namespace shoal::plan
