#include "core/plan/pipeline/planner.h"

#include <algorithm>
#include <limits>

#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/memory/stage_memory.h"
#include "core/plan/pipeline/variants.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::HasSubstr;

ModelSpec SmallModel(int64_t layers) {
  ModelSpec spec = *NamedShape("tiny");
  spec.layers = layers;
  return spec;
}

// Copies take `copy_ratio` times a block's compute, messages next to nothing.
PipelinePace PaceFor(const ModelSpec& spec, double copy_ratio) {
  PipelinePace pace{.forward_flops = 1e9,
                    .backward_input_flops = 1e9,
                    .backward_weights_flops = 1e9,
                    .elementwise_bytes_per_second = 1e11,
                    .message_bytes_per_second = 1e12};
  const ChunkBytes bytes =
      PlanChunkBytes(spec, DType::kF32, {.first = 1, .count = 1}, Recompute::kNone, 256);
  const double compute =
      3 * (BlockMatrixFlops(spec, 256) + BlockAttentionFlops(spec, 256.0 * 256)) / 1e9;
  const double rate = 2 * static_cast<double>(bytes.activations) / (copy_ratio * compute);
  pace.offload_bytes_per_second = pace.reload_bytes_per_second = rate;
  return pace;
}

PipelineRequest Request(int stages, int chunks, int microbatches, double copy_ratio = 0.7) {
  PipelineRequest request{.spec = SmallModel(std::max(6, stages * std::max(chunks, 1))),
                          .stages = stages,
                          .chunks = chunks};
  request.pace = PaceFor(request.spec, copy_ratio);
  request.microbatches.assign(microbatches, {.tokens = 256, .squared_tokens = 256.0 * 256});
  return request;
}

int64_t Largest(const std::vector<int64_t>& bytes) { return *std::ranges::max_element(bytes); }

void Limit(PipelineRequest& request, int64_t device, int64_t host = 0, int64_t other = 0) {
  request.budgets.assign(request.stages, {.device = device, .host = host, .other = other});
}

// What a choice takes, from its schedule only.
struct Taken {
  double seconds = 0;
  std::vector<int64_t> device;  // as reserved by the stages' pools
  std::vector<int64_t> host;
  std::vector<int64_t> device_peaks;
  std::vector<int64_t> host_peaks;
};

Taken TakenBy(const PipelineRequest& request, const PipelineChoice& choice) {
  const auto schedule = BuildChosenSchedule(request.spec, request.compute, choice,
                                            request.microbatches, request.pace);
  EXPECT_TRUE(schedule.ok()) << Describe(schedule.status());
  const ScheduleCosts costs = PipelineCosts(
      {.spec = request.spec, .compute = request.compute, .recompute = choice.recompute},
      schedule->shape, choice.split, request.microbatches, request.pace);
  Taken taken{.seconds = SimulateSchedule(*schedule, costs, StreamsOf(request.pace))->makespan};
  for (int stage = 0; stage < request.stages; ++stage) {
    const StageMemory memory = ReplayMemory(
        *schedule, stage,
        [&](int chunk, int microbatch) {
          const UnitRange units = choice.split[schedule->shape.VirtualStageOf(stage, chunk)];
          return PlanChunkBytes(request.spec, request.compute, units, choice.recompute,
                                request.microbatches[microbatch].tokens);
        },
        64);
    taken.device.push_back(memory.Of(MemoryPool::kDevice).capacity +
                           memory.Of(MemoryPool::kMessages).capacity);
    taken.host.push_back(memory.Of(MemoryPool::kHost).capacity);
    taken.device_peaks.push_back(memory.Of(MemoryPool::kDevice).peak);
    taken.host_peaks.push_back(memory.Of(MemoryPool::kHost).peak);
  }
  return taken;
}

bool Fits(const PipelineRequest& request, const Taken& taken) {
  for (size_t stage = 0; stage < request.budgets.size(); ++stage) {
    const StageBudget& budget = request.budgets[stage];
    if ((budget.device > 0 && budget.other + taken.device[stage] > budget.device) ||
        (budget.host > 0 && taken.host[stage] > budget.host)) {
      return false;
    }
  }
  return true;
}

TEST(PlanPipeline, WithMemoryForAllTheFastestWins) {
  const auto plan = PlanPipeline(Request(4, 0, 16));
  ASSERT_TRUE(plan.ok()) << Describe(plan.status());
  const PipelineCandidate& chosen = plan->chosen();
  EXPECT_EQ(chosen.choice.offloaded_chunks, 0);
  EXPECT_EQ(chosen.choice.recompute, Recompute::kNone);
  EXPECT_THAT(chosen.verdict, HasSubstr("the fastest of"));
  EXPECT_GT(plan->candidates.size(), 30U);
  for (const PipelineCandidate& candidate : plan->candidates) {
    EXPECT_GE(candidate.step_seconds, chosen.step_seconds);
    EXPECT_NE(candidate.verdict, "");
  }
}

TEST(PlanPipeline, OffloadsWhereMemoryIsShortAndThatCostsNothing) {
  PipelineRequest request = Request(4, 4, 16);
  request.schedule = ScheduleChoice{.kind = ScheduleKind::kUniform};
  request.recompute = Recompute::kNone;
  const auto plenty = PlanPipeline(request);
  ASSERT_TRUE(plenty.ok());
  const int64_t peak = Largest(plenty->chosen().device_bytes);
  double last = 0;
  for (const int64_t part : {80, 60, 40}) {
    Limit(request, peak * part / 100);
    const auto plan = PlanPipeline(request);
    ASSERT_TRUE(plan.ok()) << Describe(plan.status());
    const PipelineCandidate& chosen = plan->chosen();
    EXPECT_LE(Largest(chosen.device_bytes), peak * part / 100);
    EXPECT_GT(Largest(chosen.host_bytes), 0);
    EXPECT_GT(chosen.choice.offloaded_chunks, last);
    EXPECT_NEAR(chosen.step_seconds, plenty->chosen().step_seconds, 1e-9 * chosen.step_seconds);
    last = chosen.choice.offloaded_chunks;
  }
}

TEST(PlanPipeline, WithoutTimeForCopiesItRecomputes) {
  PipelineRequest request = Request(4, 2, 16, /*copy_ratio=*/1000);
  const int64_t peak = Largest(PlanPipeline(request)->chosen().device_bytes);
  Limit(request, peak / 3);
  const auto plan = PlanPipeline(request);
  ASSERT_TRUE(plan.ok()) << Describe(plan.status());
  EXPECT_EQ(plan->chosen().choice.recompute, Recompute::kFull);
  EXPECT_THAT(plan->chosen().verdict, HasSubstr("the fastest that fits; "));
  EXPECT_THAT(plan->chosen().verdict, HasSubstr("over the device budget of stage"));
}

TEST(PlanPipeline, KeepsToWhatIsAskedFor) {
  PipelineRequest request = Request(4, 2, 12);
  for (const char* name : {"GPipe", "GIS(3)", "GIS-H", "PO", "V-Half", "interleaved"}) {
    request.schedule = *ParseScheduleName(name);
    for (const double offload : {0.0, 1.0, OffloadedChunks::kHalf, OffloadedChunks::kFull}) {
      request.offload.value = offload;
      request.recompute = Recompute::kLight;
      const auto plan = PlanPipeline(request);
      ASSERT_TRUE(plan.ok()) << Describe(plan.status());
      EXPECT_EQ(plan->candidates.size(), 1U);
      const PipelineChoice& choice = plan->chosen().choice;
      EXPECT_EQ(choice.schedule, *request.schedule);
      EXPECT_EQ(choice.recompute, Recompute::kLight);
      EXPECT_EQ(choice.offloaded_chunks, offload == 0                        ? 0
                                         : offload == OffloadedChunks::kFull ? 2
                                                                             : 1);
    }
  }
  request.schedule.reset();
  request.offload.value = OffloadedChunks::kFull;
  const auto plan = PlanPipeline(request);
  ASSERT_TRUE(plan.ok());
  EXPECT_GT(plan->candidates.size(), 5U);
  for (const PipelineCandidate& candidate : plan->candidates) {
    EXPECT_EQ(candidate.choice.offloaded_chunks, candidate.choice.chunks);
    EXPECT_NE(candidate.choice.schedule.kind, ScheduleKind::kGPipe);
  }
}

TEST(PlanPipeline, OneStageGathersGradients) {
  PipelineRequest request = Request(1, 4, 6, 0.5);
  const auto plenty = PlanPipeline(request);
  ASSERT_TRUE(plenty.ok());
  EXPECT_EQ(plenty->chosen().choice.schedule.kind, ScheduleKind::kAccumulation);
  EXPECT_NEAR(plenty->chosen().bubble_share, 0, 1e-9);
  Limit(request, Largest(plenty->chosen().device_bytes) * 3 / 4);
  request.recompute = Recompute::kNone;
  const auto plan = PlanPipeline(request);
  ASSERT_TRUE(plan.ok()) << Describe(plan.status());
  EXPECT_GT(plan->chosen().choice.offloaded_chunks, 0);
  EXPECT_NEAR(plan->chosen().step_seconds, plenty->chosen().step_seconds, 1e-9);
}

TEST(PlanPipeline, WhereNothingFitsSaysWhatWouldNeedLeast) {
  PipelineRequest request = Request(3, 2, 8);
  Limit(request, 1000 * kKiB, 0, 900 * kKiB);
  const auto plan = PlanPipeline(request);
  EXPECT_TRUE(absl::IsResourceExhausted(plan.status()));
  for (const char* part :
       {"of 3 stages fits", "full recompute", "needs least", "of device memory on stage",
        "(900.0 KiB of it for other things than activations), where there are 1000.0 KiB",
        "use more stages, shorter microbatches (data.microbatch_tokens) or a larger "
        "cluster.pipeline.device_memory"}) {
    EXPECT_THAT(Describe(plan.status()), HasSubstr(part));
  }
  request.recompute = Recompute::kNone;
  request.offload.value = OffloadedChunks::kFull;
  Limit(request, 0, 1000);
  EXPECT_THAT(Describe(PlanPipeline(request).status()), HasSubstr("cluster.pipeline.host_memory"));
}

TEST(PlanPipeline, RequestsThatMakeNoSenseAreRefused) {
  const auto error = [](const PipelineRequest& request) {
    const auto plan = PlanPipeline(request);
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
    return Describe(plan.status());
  };
  PipelineRequest request = Request(4, 2, 4);
  request.microbatches.clear();
  EXPECT_THAT(error(request), HasSubstr("at least one microbatch"));
  request = Request(4, 2, 4);
  request.chunks = 5;
  EXPECT_THAT(error(request), HasSubstr("use fewer stages or chunks"));
  request = Request(4, 2, 4);
  request.schedule = ScheduleChoice{.kind = ScheduleKind::kOneForwardOneBackward};
  EXPECT_THAT(error(request), HasSubstr("1F1B has one chunk"));
  request = Request(4, 0, 4);
  request.schedule = ScheduleChoice{.kind = ScheduleKind::kAccumulation};
  EXPECT_THAT(error(request), HasSubstr("no schedule accumulation is made for 4 stages"));
  request = Request(4, 2, 4);
  request.budgets.resize(3);
  EXPECT_THAT(error(request), HasSubstr("budgets for 3 stages and not for 4"));
  request = Request(4, 2, 4);
  request.pace.forward_flops = 0;
  EXPECT_THAT(error(request), HasSubstr("forward FLOP/s is 0"));
}

PipelineRequest RandomRequest(Random& random, int most_stages, int most_chunks,
                              int most_microbatches) {
  const auto stages = static_cast<int>(random.Between(1, most_stages));
  const auto chunks = static_cast<int>(random.Between(0, most_chunks));
  PipelineRequest request = Request(stages, chunks, 1, 0.2 + 2 * random.Uniform());
  request.microbatches.clear();
  for (int64_t count = random.Between(1, most_microbatches); count > 0; --count) {
    const int64_t lengths[] = {random.Between(1, 300), random.Between(1, 300)};
    request.microbatches.push_back(SizeOfSequences(lengths));
  }
  request.pace.duplex = random.Below(3) == 0;
  request.pace.paired = random.Below(3) == 0;
  // Budgets from nothing to all of what the fastest takes.
  const auto plenty = PlanPipeline(request);
  EXPECT_TRUE(plenty.ok()) << Describe(plenty.status());
  const auto peak = static_cast<double>(Largest(plenty->chosen().device_bytes));
  for (int stage = 0; stage < stages; ++stage) {
    request.budgets.push_back(
        {.device = 1 + static_cast<int64_t>(1.2 * random.Uniform() * peak),
         .host = random.Below(2) == 0 ? 0 : static_cast<int64_t>(random.Uniform() * peak),
         .other = static_cast<int64_t>(0.1 * random.Uniform() * peak)});
  }
  return request;
}

// Returns the least time of all that fit, of every candidate with every quarter of a chunk.
double LeastOfAll(const PipelineRequest& request) {
  double least = std::numeric_limits<double>::max();
  std::vector<Variant> variants = VariantsOf(request).value();
  for (Variant& variant : variants) {
    for (double chunks = 0; chunks <= variant.choice.chunks; chunks += 0.25) {
      variant.choice.offloaded_chunks = chunks;
      if (const Taken taken = TakenBy(request, variant.choice); Fits(request, taken)) {
        least = std::min(least, taken.seconds);
      }
    }
  }
  return least;
}

TEST(PlanPipeline, FindsWhatAnExhaustiveSearchFindsAndNeverGoesOverABudget) {
  Random random(29);
  int found = 0;
  int refused = 0;
  for (int round = 0; round < 50; ++round) {
    const PipelineRequest request = RandomRequest(random, 4, 3, 8);
    const double least = LeastOfAll(request);
    const auto plan = PlanPipeline(request);
    if (!plan.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(plan.status())) << Describe(plan.status());
      EXPECT_EQ(least, std::numeric_limits<double>::max()) << round;
      ++refused;
      continue;
    }
    ++found;
    const PipelineCandidate& chosen = plan->chosen();
    EXPECT_LE(chosen.step_seconds, 1.03 * least) << round;
    const Taken taken = TakenBy(request, chosen.choice);
    EXPECT_TRUE(Fits(request, taken)) << round;
    EXPECT_NEAR(taken.seconds, chosen.step_seconds, 1e-9 * taken.seconds);
    EXPECT_EQ(taken.device_peaks, chosen.device_bytes);
    EXPECT_EQ(taken.host_peaks, chosen.host_bytes);
  }
  EXPECT_GT(found, 20);
  EXPECT_GT(refused, 5);
}

TEST(PlanPipeline, NeverGoesOverABudgetAtAnyShape) {
  Random random(37);
  int found = 0;
  for (int round = 0; round < 30; ++round) {
    PipelineRequest request = RandomRequest(random, 12, 5, 60);
    request.offload.value = random.Below(3) == 0 ? OffloadedChunks::kHalf : OffloadedChunks::kAuto;
    const auto plan = PlanPipeline(request);
    if (!plan.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(plan.status())) << Describe(plan.status());
      continue;
    }
    ++found;
    const PipelineCandidate& chosen = plan->chosen();
    EXPECT_TRUE(chosen.fits && chosen.simulated);
    EXPECT_TRUE(Fits(request, TakenBy(request, chosen.choice))) << round;
    for (const PipelineCandidate& candidate : plan->candidates) {
      EXPECT_TRUE(!candidate.fits || candidate.step_seconds >= chosen.step_seconds * 0.98);
    }
  }
  EXPECT_GT(found, 15);
}

// Long steps are compared by their first microbatches; the chosen one is simulated whole.
TEST(PlanPipeline, LongStepsKeepToTheirBudgetsToo) {
  Random random(31);
  PipelineRequest request = Request(8, 3, 1, 0.8);
  request.microbatches.clear();
  for (int i = 0; i < 120; ++i) {
    const int64_t lengths[] = {random.Between(100, 300)};
    request.microbatches.push_back(SizeOfSequences(lengths));
  }
  const auto plenty = PlanPipeline(request);
  ASSERT_TRUE(plenty.ok());
  EXPECT_TRUE(plenty->chosen().simulated);
  const int64_t peak = Largest(plenty->chosen().device_bytes);
  for (const int64_t part : {70, 20}) {
    Limit(request, peak * part / 100);
    const auto plan = PlanPipeline(request);
    ASSERT_TRUE(plan.ok()) << Describe(plan.status());
    EXPECT_TRUE(Fits(request, TakenBy(request, plan->chosen().choice))) << part;
    EXPECT_LE(plan->chosen().step_seconds, 1.4 * plenty->chosen().step_seconds);
  }
}

TEST(BuildChosenSchedule, IsTheSameEachTimeAndOnlyForChoicesThatFitTheModel) {
  const PipelineRequest request = Request(3, 2, 10);
  PipelineChoice choice = PlanPipeline(request)->chosen().choice;
  choice.offloaded_chunks = 1.5;
  const auto build = [&](const PipelineChoice& of) {
    return BuildChosenSchedule(request.spec, request.compute, of, request.microbatches,
                               request.pace);
  };
  const auto schedule = build(choice);
  ASSERT_TRUE(schedule.ok());
  EXPECT_TRUE(CheckSchedule(*schedule).ok());
  EXPECT_EQ(schedule->stages, build(choice)->stages);
  EXPECT_GT(std::ranges::count(schedule->stages[0], Operation::kReload, &Action::operation), 5);
  PipelineChoice other = choice;
  other.split.back().count += 1;
  EXPECT_THAT(Describe(build(other).status()), HasSubstr("the split has 6 ranges"));
  other = choice;
  other.split[1].first += 1;
  EXPECT_THAT(Describe(build(other).status()), HasSubstr("are next"));
  other = choice;
  other.offloaded_chunks = 2.5;
  EXPECT_THAT(Describe(build(other).status()), HasSubstr("2.5 of 2 chunks"));
  EXPECT_FALSE(BuildChosenSchedule(request.spec, request.compute, choice, {}, request.pace).ok());
}

}  // namespace
}  // namespace shoal::plan
