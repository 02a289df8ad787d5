#include "core/plan/step/step_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/plan/step/lengths.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

std::vector<SampleLength> RandomSamples(Random& random, int64_t count, int64_t longest) {
  std::vector<SampleLength> samples;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t tokens =
        std::min(longest, 1 + static_cast<int64_t>(std::exp(4 + 1.2 * random.Normal())));
    samples.push_back({.sample = 1000 + i,
                       .tokens = tokens,
                       .targets = random.Between(0, tokens - 1),
                       .weight = random.Uniform()});
  }
  return samples;
}

std::vector<SampleLength> Alike(int64_t count, int64_t tokens) {
  std::vector<SampleLength> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back({.sample = i, .tokens = tokens, .targets = 1});
  }
  return samples;
}

struct Sums {
  int64_t tokens = 0;
  int64_t targets = 0;
  double weight = 0;
  double squared_tokens = 0;
  double cost = 0;
};

// Every sample is in one microbatch, none is too long, and all sums are right.
void CheckPlan(const StepPlan& plan, const std::vector<SampleLength>& samples,
               const StepPlanOptions& options, const CostModel& cost) {
  ASSERT_EQ(static_cast<int>(plan.workers.size()), options.workers);
  std::map<int64_t, SampleLength> left;
  Sums all;
  for (const SampleLength& sample : samples) {
    left[sample.sample] = sample;
    all.tokens += sample.tokens;
    all.targets += sample.targets;
    all.weight += sample.weight;
  }
  EXPECT_EQ(plan.tokens, all.tokens);
  EXPECT_EQ(plan.targets, all.targets);
  EXPECT_EQ(plan.weight, all.weight);
  for (const auto& worker : plan.workers) {
    for (const Microbatch& microbatch : worker) {
      EXPECT_TRUE(options.equal_counts || !microbatch.empty());
      EXPECT_LE(microbatch.tokens, options.microbatch_tokens);
      Sums sums = {.cost = microbatch.empty() ? 0 : cost.per_microbatch};
      for (const int64_t sample : microbatch.samples) {
        ASSERT_TRUE(left.contains(sample)) << sample << " is in two microbatches";
        const int64_t tokens = left[sample].tokens;
        sums.tokens += tokens;
        sums.targets += left[sample].targets;
        sums.squared_tokens += static_cast<double>(tokens * tokens);
        sums.cost += cost.Sequence(tokens);
        left.erase(sample);
      }
      EXPECT_EQ(sums.tokens, microbatch.tokens);
      EXPECT_EQ(sums.targets, microbatch.targets);
      EXPECT_EQ(sums.squared_tokens, microbatch.squared_tokens);
      EXPECT_NEAR(sums.cost, microbatch.cost, 1e-9 * sums.cost);
    }
  }
  EXPECT_TRUE(left.empty());
}

// What each assignment promises beyond that.
void CheckOrderAndCounts(const StepPlan& plan, const StepPlanOptions& options, size_t samples) {
  const Assignment assignment = Resolved(
      options.assignment, options.equal_counts ? Synchronization::kLayer : Synchronization::kStep);
  const bool dealt = assignment == Assignment::kNative || assignment == Assignment::kLocalSort;
  size_t largest = 0;
  for (const auto& worker : plan.workers) {
    largest = std::max(largest, worker.size());
  }
  const size_t fair = samples / plan.workers.size();
  for (const auto& worker : plan.workers) {
    size_t count = 0;
    for (const Microbatch& microbatch : worker) {
      count += microbatch.samples.size();
      EXPECT_TRUE(!dealt || microbatch.samples.size() <= 1);
    }
    if (dealt || assignment == Assignment::kLbMicro) {
      EXPECT_THAT(count, testing::AnyOf(fair, fair + 1));
    }
    EXPECT_TRUE(!options.equal_counts || worker.size() == largest);
    for (size_t i = 1; i < worker.size(); ++i) {
      if (assignment == Assignment::kLocalSort) {
        EXPECT_TRUE(worker[i].empty() || worker[i - 1].tokens <= worker[i].tokens);
      } else if (!dealt) {
        EXPECT_GE(worker[i - 1].cost, worker[i].cost);
      }
    }
  }
}

TEST(PlanStep, KeepsItsLaws) {
  Random random(1);
  const ModelSpec spec = *NamedShape("6m");
  const CostModel fitted = {.per_microbatch = 4e-3, .per_token = 1e-5, .per_squared_token = 1e-8};
  for (const CostModel& cost : {TokenCost(), FlopCost(spec), fitted}) {
    for (const auto& [name, assignment] : kAssignmentNames) {
      for (int round = 0; round < 60; ++round) {
        SCOPED_TRACE(fmt::format("{} round {}", name, round));
        StepPlanOptions options{.workers = static_cast<int>(random.Between(1, 12)),
                                .microbatch_tokens = random.Between(500, 5000),
                                .assignment = assignment,
                                .equal_counts = random.Below(2) == 0};
        for (int worker = 0; round % 3 == 0 && worker < options.workers; ++worker) {
          options.speeds.push_back(0.2 + random.Uniform());
        }
        const auto samples =
            RandomSamples(random, random.Between(0, 80), options.microbatch_tokens);
        const auto plan = PlanStep(samples, options, cost);
        ASSERT_TRUE(plan.ok()) << Describe(plan.status());
        CheckPlan(*plan, samples, options, cost);
        CheckOrderAndCounts(*plan, options, samples.size());
        EXPECT_EQ(*plan, *PlanStep(samples, options, cost));
      }
    }
  }
}

TEST(PlanStep, NativeAndLocalSortDealInTurn) {
  const std::vector<SampleLength> samples = {{.sample = 7, .tokens = 30},
                                             {.sample = 8, .tokens = 20},
                                             {.sample = 9, .tokens = 10},
                                             {.sample = 5, .tokens = 15},
                                             {.sample = 6, .tokens = 25}};
  const auto order = [&](Assignment assignment) {
    const auto plan = PlanStep(samples, {.workers = 2, .assignment = assignment}, TokenCost());
    std::vector<std::vector<int64_t>> result;
    for (const auto& worker : plan->workers) {
      for (const Microbatch& microbatch : worker) {
        result.push_back(microbatch.samples);
      }
    }
    return result;
  };
  using Order = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(order(Assignment::kNative), (Order{{7}, {9}, {6}, {8}, {5}}));
  EXPECT_EQ(order(Assignment::kLocalSort), (Order{{9}, {6}, {7}, {5}, {8}}));
}

TEST(PlanStep, LbMicroGivesEveryWorkerTheSameNumberOfMicrobatches) {
  Random random(8);
  for (int round = 0; round < 100; ++round) {
    const StepPlanOptions options{.workers = static_cast<int>(random.Between(1, 8)),
                                  .microbatch_tokens = random.Between(500, 3000),
                                  .assignment = Assignment::kLbMicro};
    const auto samples =
        RandomSamples(random, options.workers * random.Between(1, 12), options.microbatch_tokens);
    const auto plan = PlanStep(samples, options, TokenCost());
    ASSERT_TRUE(plan.ok());
    for (const auto& worker : plan->workers) {
      EXPECT_EQ(worker.size(), plan->workers[0].size());
    }
  }
}

// All packs of a plan, whoever runs them.
std::vector<std::vector<int64_t>> PacksOf(const StepPlan& plan) {
  std::vector<std::vector<int64_t>> packs;
  for (const auto& worker : plan.workers) {
    for (const Microbatch& microbatch : worker) {
      if (!microbatch.empty()) {
        packs.push_back(microbatch.samples);
      }
    }
  }
  std::ranges::sort(packs);
  return packs;
}

TEST(PlanStep, PackGroupsMakeTheSamePacksForAnyWorkers) {
  Random random(3);
  for (const auto& [name, assignment] : kAssignmentNames) {
    for (int round = 0; round < 20; ++round) {
      SCOPED_TRACE(fmt::format("{} round {}", name, round));
      StepPlanOptions options{.pack_groups = static_cast<int>(random.Between(1, 5)),
                              .microbatch_tokens = random.Between(500, 3000),
                              .assignment = assignment,
                              .equal_counts = random.Below(2) == 0};
      const auto samples = RandomSamples(random, random.Between(1, 60), options.microbatch_tokens);
      options.workers = options.pack_groups;
      const auto packs = PacksOf(PlanStep(samples, options, TokenCost()).value());
      for (options.workers = 1; options.workers <= 6; ++options.workers) {
        options.speeds.assign(random.Below(2) * static_cast<size_t>(options.workers), 1);
        std::ranges::generate(options.speeds, [&] { return 0.2 + random.Uniform(); });
        const auto plan = PlanStep(samples, options, TokenCost());
        ASSERT_TRUE(plan.ok()) << Describe(plan.status());
        CheckPlan(*plan, samples, options, TokenCost());
        EXPECT_EQ(PacksOf(*plan), packs);
      }
    }
  }
}

// Eight packs of equal cost, given to two workers of which one is three times as fast.
TEST(PlanStep, PacksAreGivenOutBySpeed) {
  const auto plan = PlanStep(Alike(16, 100),
                             {.workers = 2,
                              .pack_groups = 4,
                              .microbatch_tokens = 200,
                              .assignment = Assignment::kSpeedWeighted,
                              .speeds = {3, 1}},
                             TokenCost());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->workers[0].size(), 6U);
  EXPECT_EQ(plan->workers[1].size(), 2U);
}

TEST(StepPlanOptionsOf, ExactModePacksForFourWhoeverIsThere) {
  Job job;
  EXPECT_EQ(StepPlanOptionsOf(job, 3).pack_groups, 3);
  EXPECT_EQ(StepPlanOptionsOf(job, 2, {1, 2}).pack_groups, 0);
  job.service.accumulate = Accumulate::kExact;
  EXPECT_EQ(StepPlanOptionsOf(job, 3).pack_groups, 4);
  EXPECT_EQ(StepPlanOptionsOf(job, 2, {1, 2}).pack_groups, 4);
  job.plan.pack_groups = 5;
  EXPECT_EQ(StepPlanOptionsOf(job, 3).pack_groups, 5);
}

TEST(PlanStep, SpeedsDecideHowMuchAWorkerGets) {
  const std::vector<SampleLength> samples = Alike(70, 100);
  StepPlanOptions options{.workers = 4, .microbatch_tokens = 300, .speeds = {1, 1, 0.5, 1}};
  for (const Assignment assignment : {Assignment::kSpeedWeighted, Assignment::kDynamic}) {
    options.assignment = assignment;
    const auto plan = PlanStep(samples, options, TokenCost());
    ASSERT_TRUE(plan.ok());
    CheckPlan(*plan, samples, options, TokenCost());
    EXPECT_EQ(plan->workers[2].size(), 4U);
    EXPECT_EQ(plan->workers[0].size(), 7U);
  }
  options.assignment = Assignment::kLbMini;
  EXPECT_EQ(PlanStep(samples, options, TokenCost())->workers[2].size(), 6U);
}

// First-fit decreasing, as an upper bound on the packs.
size_t FirstFit(std::vector<int64_t> tokens, int64_t limit) {
  std::ranges::sort(tokens, std::greater<>());
  std::vector<int64_t> packs;
  for (const int64_t count : tokens) {
    const auto room =
        std::ranges::find_if(packs, [&](int64_t used) { return used + count <= limit; });
    if (room == packs.end()) {
      packs.push_back(count);
    } else {
      *room += count;
    }
  }
  return packs.size();
}

TEST(PlanStep, UsesFewMicrobatches) {
  Random random(2);
  const CostModel cost = FlopCost(*NamedShape("25m"));
  for (int round = 0; round < 200; ++round) {
    const StepPlanOptions options{.workers = 1, .microbatch_tokens = 2000};
    const auto samples = RandomSamples(random, random.Between(1, 60), 2000);
    const auto plan = PlanStep(samples, options, cost);
    ASSERT_TRUE(plan.ok());
    std::vector<int64_t> tokens;
    for (const SampleLength& sample : samples) {
      tokens.push_back(sample.tokens);
    }
    EXPECT_LE(plan->workers[0].size(), FirstFit(tokens, 2000));
    EXPECT_GE(static_cast<int64_t>(plan->workers[0].size()) * 2000, plan->tokens);
  }
}

TEST(PlanStep, BalancesTheCostOfMicrobatches) {
  const auto plan = PlanStep(Alike(8, 250), {.workers = 1, .microbatch_tokens = 1100}, TokenCost());
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->workers[0].size(), 2U);
  EXPECT_EQ(plan->workers[0][0].tokens, 1000);
  EXPECT_EQ(plan->workers[0][1].tokens, 1000);
}

TEST(PlanStep, LeavesWorkersWithoutWorkWhereThereIsTooLittle) {
  const std::vector<SampleLength> samples = {{.sample = 4, .tokens = 10, .targets = 3},
                                             {.sample = 9, .tokens = 20, .targets = 5}};
  const auto plan = PlanStep(samples, {.workers = 5, .microbatch_tokens = 100}, TokenCost());
  ASSERT_TRUE(plan.ok());
  CheckPlan(*plan, samples, {.workers = 5, .microbatch_tokens = 100}, TokenCost());
  EXPECT_EQ(std::ranges::count_if(plan->workers, [](const auto& worker) { return worker.empty(); }),
            3);
  EXPECT_EQ(PlanStep({}, {.workers = 2}, TokenCost())->workers.size(), 2U);
}

TEST(PlanStep, OneLongSampleGetsAWorkerOfItsOwnAndCountsDiffer) {
  std::vector<SampleLength> samples = Alike(21, 100);
  samples[0].tokens = 1000;
  const auto plan = PlanStep(samples, {.workers = 3, .microbatch_tokens = 1000}, TokenCost());
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(
      std::ranges::any_of(plan->workers, [](const auto& worker) { return worker.size() == 1; }));
  for (const auto& worker : plan->workers) {
    EXPECT_LE(worker.size(), 2U);
  }
}

TEST(PlanStep, RefusesByName) {
  const std::vector<SampleLength> samples = {{.sample = 3, .tokens = 50, .targets = 1},
                                             {.sample = 17, .tokens = 101, .targets = 1}};
  const auto plan = PlanStep(samples, {.workers = 2, .microbatch_tokens = 100}, TokenCost());
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
  EXPECT_THAT(
      std::string(Message(plan.status())),
      testing::StartsWith("sample 17 has 101 tokens, more than data.microbatch_tokens (100)"));
  EXPECT_FALSE(PlanStep(samples, {.workers = 0}, TokenCost()).ok());
  EXPECT_FALSE(PlanStep({}, {.workers = 2, .speeds = {1}}, TokenCost()).ok());
  for (const double speed : {0.0, -1.0, std::nan("")}) {
    const auto refused = PlanStep({}, {.workers = 2, .speeds = {1, speed}}, TokenCost());
    EXPECT_THAT(std::string(Message(refused.status())), testing::HasSubstr("worker 1"));
  }
  const std::vector<SampleLength> empty = {{.sample = 3, .tokens = 0}};
  EXPECT_FALSE(PlanStep(empty, {}, TokenCost()).ok());
}

// Packs that do not follow from who is there; equally many for each where they meet at layers.
TEST(ValidationPlanOptionsOf, HasTheSamePacksForAnyWorkers) {
  Random random(7);
  std::vector<SampleLength> samples;
  for (int64_t i = 0; i < 50; ++i) {
    samples.push_back({.sample = i, .tokens = random.Between(1, 4096), .targets = 1});
  }
  Job job;
  job.data.microbatch_tokens = 4096;
  std::map<int64_t, std::vector<int64_t>> packs;
  for (const Synchronization synchronization : {Synchronization::kStep, Synchronization::kLayer}) {
    job.train.synchronization = synchronization;
    for (const int64_t workers : {1, 3, 5, 7}) {
      const StepPlan plan = *PlanStep(samples, ValidationPlanOptionsOf(job, workers), TokenCost());
      std::map<int64_t, std::vector<int64_t>> made;
      for (const std::vector<Microbatch>& microbatches : plan.workers) {
        EXPECT_TRUE(synchronization == Synchronization::kStep ||
                    microbatches.size() == plan.workers.front().size());
        for (const Microbatch& microbatch : microbatches) {
          if (!microbatch.empty()) {
            made[microbatch.number] = microbatch.samples;
          }
        }
      }
      packs = packs.empty() ? made : packs;
      EXPECT_EQ(made, packs) << workers << " workers";
    }
  }
}

TEST(FlopCost, GrowsFasterThanLength) {
  const CostModel cost = FlopCost(*NamedShape("1.5b"));
  EXPECT_GT(cost.Sequence(2000), 2 * cost.Sequence(1000));
  // Attention equals the rest at about 42 thousand tokens for this shape (ODC, cost model).
  EXPECT_NEAR(cost.Sequence(2 * 42000) / cost.Sequence(42000), 3.0, 0.15);
}

TEST(FlopCost, OfAdaptersIsWithoutTheGradientOfTheModelsMatrices) {
  const ModelSpec model = *NamedShape("1.5b");
  const CostModel full = FlopCost(model);
  const CostModel adapted = FlopCost(*WithAdapters(model, {"all-linear"}, /*rank=*/16, 1));
  EXPECT_DOUBLE_EQ(adapted.per_squared_token, full.per_squared_token);
  EXPECT_GT(adapted.per_token, full.per_token * 2 / 3);
  EXPECT_LT(adapted.per_token, full.per_token * 0.70);
}

TEST(ForwardCost, IsAThirdOfTrainingTheWholeModel) {
  const ModelSpec model = *NamedShape("1.5b");
  const CostModel forward = ForwardCost(*WithAdapters(model, {"all-linear"}, /*rank=*/16, 1));
  EXPECT_DOUBLE_EQ(forward.per_token, FlopCost(model).per_token / 3);
  EXPECT_DOUBLE_EQ(forward.per_squared_token, FlopCost(model).per_squared_token / 3);
}

TEST(FlopCost, OfPairsComparedWithTheModelAloneIsThatModelsToo) {
  const ModelSpec model = *WithAdapters(*NamedShape("1.5b"), {"all-linear"}, /*rank=*/16, 1);
  Job job;
  EXPECT_EQ(FlopCost(job, model), FlopCost(model));
  job.preference.reference = Reference::kAdapterOff;
  const CostModel both = FlopCost(job, model);
  EXPECT_EQ(both.per_token, FlopCost(model).per_token + ForwardCost(model).per_token);
  EXPECT_EQ(both.per_squared_token,
            FlopCost(model).per_squared_token + ForwardCost(model).per_squared_token);
}

TEST(Lengths, HaveTheQuantilesTheyAreKnownFor) {
  struct Known {
    const char* name;
    double p10, p50, p90, p99;
  };
  for (const Known& known :
       {Known{"longalign", 5100, 13100, 32900, 56700},
        Known{"swe-smith", 12400, 28600, 65000, 109000}, Known{"aime", 3800, 8000, 16000, 22500}}) {
    const auto distribution = ParseLengths(known.name);
    ASSERT_TRUE(distribution.ok());
    Random random(1);
    std::vector<double> drawn(20000);
    for (double& length : drawn) {
      length = static_cast<double>(DrawLength(*distribution, random));
    }
    std::ranges::sort(drawn);
    EXPECT_NEAR(drawn[2000] / known.p10, 1, 0.05) << known.name;
    EXPECT_NEAR(drawn[10000] / known.p50, 1, 0.05) << known.name;
    EXPECT_NEAR(drawn[18000] / known.p90, 1, 0.05) << known.name;
    EXPECT_NEAR(drawn[19800] / known.p99, 1, 0.05) << known.name;
  }
}

TEST(Lengths, ReadsEveryFormAndRefusesTheRest) {
  Random random(1);
  for (const char* text :
       {"fixed:7", "uniform:3:9", "lognormal:5:0.8:16:2048", "longalign:2048", "aime:64"}) {
    const auto distribution = ParseLengths(text);
    ASSERT_TRUE(distribution.ok()) << text;
    for (int i = 0; i < 1000; ++i) {
      const int64_t length = DrawLength(*distribution, random);
      EXPECT_GE(length, distribution->low);
      EXPECT_LE(length, distribution->high);
    }
  }
  EXPECT_EQ(ParseLengths("longalign:2048")->high, 2048);
  for (const char* text : {"", "longalin", "fixed", "fixed:0", "fixed:x", "uniform:9:3",
                           "uniform:1", "lognormal:5:0:1:9", "lognormal:50:1:1:9", "fixed:1e300",
                           "fixed:nan", "longalign:1:2", "fixed:-1"}) {
    EXPECT_FALSE(ParseLengths(text).ok()) << text;
  }
}

}  // namespace
}  // namespace shoal::plan
