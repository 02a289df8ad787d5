#include "worker/model/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/access/unit_walk.h"
#include "worker/model/testing/gradients.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using testing_model::CheckEveryTensor;
using testing_model::EmptyGradientSink;
using testing_model::FullSpec;
using testing_model::LengthOf;
using testing_model::MakeModel;
using testing_model::RandomBatch;
using testing_model::RandomPairs;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

TEST(RunMicrobatch, EveryTensorsGradientAgreesWithFiniteDifferences) {
  for (const plan::ModelSpec& spec :
       {SmallSpec(), FullSpec(), testing_model::PostNormSpec(), testing_model::SandwichSpec()}) {
    CheckEveryTensor(spec);
  }
}

TEST(RunMicrobatch, SoDoesThatOfPairs) {
  for (const auto loss : {plan::PreferenceLoss::kSigmoid, plan::PreferenceLoss::kIpo,
                          plan::PreferenceLoss::kSimpo, plan::PreferenceLoss::kOrpo}) {
    CheckEveryTensor(SmallSpec(), RandomPairs(SmallSpec(), {17, 6, 4, 30}, 4, loss));
  }
  CheckEveryTensor(
      testing_model::SandwichSpec(),
      RandomPairs(testing_model::SandwichSpec(), {17, 6}, 4, plan::PreferenceLoss::kSigmoid));
}

TEST(RunMicrobatch, PackedEqualsEachSampleAlone) {
  for (const plan::ModelSpec& spec : {SmallSpec(), FullSpec()}) {
    const auto model = MakeModel(spec);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 5);
    // FullSpec has a window of 5.
    const PackedBatch packed = RandomBatch(spec, {40, 7, 90, 1, 25, 4, 5, 6}, 6, /*masked=*/true);
    MemoryGradientSink together(model->units());
    MemoryGradientSink apart(model->units());
    const MicrobatchResult result = *RunMicrobatch(*model, packed, 0.125, weights, together);
    double loss = 0;
    for (size_t s = 0; s + 1 < packed.cu_seqlens.size(); ++s) {
      const auto begin = static_cast<size_t>(packed.cu_seqlens[s]);
      const auto length = static_cast<size_t>(packed.cu_seqlens[s + 1]) - begin;
      PackedBatch alone;
      alone.Append(std::span(packed.tokens).subspan(begin, length),
                   std::span(packed.labels).subspan(begin, length));
      loss += RunMicrobatch(*model, alone, 0.125, weights, apart)->loss_sum;
    }
    EXPECT_NEAR(loss / result.loss_sum, 1.0, 1e-6);
    for (const plan::UnitSpec& unit : model->units()) {
      const auto a = together.gradient(unit.index);
      const auto b = apart.gradient(unit.index);
      double error = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        error = std::max(error, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
      }
      EXPECT_LT(error, 1e-5 * LengthOf(a)) << unit.name;
    }
  }
}

TEST(RunMicrobatch, WritesAllOfAnEmptyGradientAndAddsToItAfterwards) {
  for (const plan::ModelSpec& spec : {SmallSpec(true), SmallSpec(false), FullSpec()}) {
    const auto model = MakeModel(spec);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 5);
    PackedBatch without_targets = RandomBatch(spec, {9}, 6);
    std::ranges::fill(without_targets.labels, formats::kIgnoredLabel);
    const PackedBatch ordinary = RandomBatch(spec, {40, 7}, 6, /*masked=*/true);
    for (const auto& batches : {std::vector{ordinary, ordinary}, {without_targets, ordinary}}) {
      MemoryGradientSink added(model->units());
      EmptyGradientSink written(model->units());
      for (const PackedBatch& batch : batches) {
        ASSERT_TRUE(RunMicrobatch(*model, batch, 0.125, weights, added).ok());
        ASSERT_TRUE(RunMicrobatch(*model, batch, 0.125, weights, written).ok());
      }
      for (const plan::UnitSpec& unit : model->units()) {
        EXPECT_TRUE(std::ranges::equal(written.gradient(unit.index), added.gradient(unit.index)))
            << unit.name;
      }
    }
  }
}

// Wants no gradient of some units.
class FreezingSink final : public MemoryGradientSink {
 public:
  FreezingSink(const std::vector<plan::UnitSpec>& units, std::set<int> frozen)
      : MemoryGradientSink(units), frozen_(std::move(frozen)) {}
  bool Wants(int unit) override { return !frozen_.contains(unit); }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override {
    SHOAL_CHECK(Wants(unit));
    return MemoryGradientSink::Accumulator(unit);
  }

 private:
  const std::set<int> frozen_;
};

TEST(RunMicrobatch, WhatIsFrozenChangesNoOtherGradient) {
  for (const plan::ModelSpec& spec : {SmallSpec(true), SmallSpec(false), FullSpec()}) {
    const auto model = MakeModel(spec);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 5);
    const PackedBatch batch = RandomBatch(spec, {40, 7}, 6, /*masked=*/true);
    MemoryGradientSink all(model->units());
    const MicrobatchResult result = *RunMicrobatch(*model, batch, 0.125, weights, all);
    const int head = model->head_unit();
    for (const std::set<int>& frozen : {std::set{0}, {1}, {0, 1}, {head}, {0, head}, {1, head}}) {
      FreezingSink some(model->units(), frozen);
      const auto run = RunMicrobatch(*model, batch, 0.125, weights, some);
      ASSERT_TRUE(run.ok()) << run.status();
      EXPECT_EQ(run->loss_sum, result.loss_sum);
      for (const plan::UnitSpec& unit : model->units()) {
        const bool trains = !frozen.contains(unit.index);
        EXPECT_EQ(std::ranges::equal(some.gradient(unit.index), all.gradient(unit.index)), trains)
            << unit.name;
        EXPECT_GT(std::ranges::count(some.done(), unit.index), 0) << unit.name;
      }
    }
  }
}

TEST(RunMicrobatch, Bf16IsCloseToFp32) {
  const plan::ModelSpec spec = FullSpec();
  const auto exact = MakeModel(spec);
  const auto model = MakeModel(spec, DType::kBF16);
  MemoryUnitSource exact_weights = RandomWeights(model->units(), DType::kF32, 7);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kBF16, 7);
  const PackedBatch batch = RandomBatch(spec, {60, 40}, 8);
  MemoryGradientSink exact_sink(model->units());
  MemoryGradientSink sink(model->units());
  const double expected = RunMicrobatch(*exact, batch, 1.0, exact_weights, exact_sink)->loss_sum;
  EXPECT_NEAR(RunMicrobatch(*model, batch, 1.0, weights, sink)->loss_sum / expected, 1.0, 0.01);
  for (const plan::UnitSpec& unit : model->units()) {
    const auto a = exact_sink.gradient(unit.index);
    const auto b = sink.gradient(unit.index);
    double dot = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    EXPECT_GT(dot / (LengthOf(a) * LengthOf(b)), 0.995) << unit.name;
  }
}

TEST(RunMicrobatch, SameBitsEveryTime) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const plan::ModelSpec spec = SmallSpec();
    const PackedBatch batch = RandomBatch(spec, {100, 50, 200}, 9);
    std::vector<std::vector<float>> gradients;
    for (int round = 0; round < 3; ++round) {
      const auto model = MakeModel(spec, compute, 3);
      MemoryUnitSource weights = RandomWeights(model->units(), compute, 10);
      MemoryGradientSink sink(model->units());
      ASSERT_TRUE(RunMicrobatch(*model, batch, 1.0, weights, sink).ok());
      std::vector<float>& all = gradients.emplace_back();
      for (const plan::UnitSpec& unit : model->units()) {
        all.insert(all.end(), sink.gradient(unit.index).begin(), sink.gradient(unit.index).end());
      }
      EXPECT_EQ(std::memcmp(all.data(), gradients[0].data(), all.size() * sizeof(float)), 0);
    }
  }
}

TEST(RunMicrobatch, GoesThroughTheUnitsInOrderAndReleasesThem) {
  for (const bool tied : {true, false}) {
    const plan::ModelSpec spec = SmallSpec(tied);
    const auto model = MakeModel(spec);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 11);
    MemoryGradientSink sink(model->units());
    ASSERT_TRUE(RunMicrobatch(*model, RandomBatch(spec, {9}, 12), 1.0, weights, sink).ok());
    if (tied) {  // unit 0 also gets a contribution from the head
      EXPECT_THAT(sink.done(), testing::ElementsAre(3, 0, 2, 1, 0));
    } else {
      EXPECT_THAT(sink.done(), testing::ElementsAre(3, 2, 1, 0));
    }
    EXPECT_EQ(weights.held(), 0);
  }
}

TEST(RunMicrobatch, GradientsAreAdded) {
  const plan::ModelSpec spec = SmallSpec();
  const auto model = MakeModel(spec);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 13);
  MemoryGradientSink once(model->units());
  MemoryGradientSink twice(model->units());
  const PackedBatch batch = RandomBatch(spec, {33}, 14);
  ASSERT_TRUE(RunMicrobatch(*model, batch, 1.0, weights, once).ok());
  ASSERT_TRUE(RunMicrobatch(*model, batch, 0.5, weights, twice).ok());
  ASSERT_TRUE(RunMicrobatch(*model, batch, 0.5, weights, twice).ok());
  for (const plan::UnitSpec& unit : model->units()) {
    for (size_t i = 0; i < once.gradient(unit.index).size(); ++i) {
      ASSERT_NEAR(once.gradient(unit.index)[i], twice.gradient(unit.index)[i], 1e-4);
    }
  }
}

TEST(RunMicrobatch, NoTargetsGiveNoLossAndNoGradient) {
  const plan::ModelSpec spec = FullSpec();
  const auto model = MakeModel(spec);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 15);
  MemoryGradientSink sink(model->units());
  PackedBatch batch = RandomBatch(spec, {12}, 16);
  std::fill(batch.labels.begin(), batch.labels.end(), formats::kIgnoredLabel);
  const MicrobatchResult result = *RunMicrobatch(*model, batch, 1.0, weights, sink);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(result.targets, 0);
  EXPECT_EQ(result.tokens, 12);
  for (const plan::UnitSpec& unit : model->units()) {
    EXPECT_EQ(LengthOf(sink.gradient(unit.index)), 0.0);
  }
}

TEST(RunMicrobatch, MemoryIsWhatPlanningCountsAndDoesNotGrow) {
  const plan::ModelSpec spec = SmallSpec();
  const auto model = MakeModel(spec);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 17);
  MemoryGradientSink sink(model->units());
  for (const int64_t length : {200, 30, 200, 1}) {
    ASSERT_TRUE(RunMicrobatch(*model, RandomBatch(spec, {length}, 18), 1.0, weights, sink).ok());
    EXPECT_LE(model->device().allocated_bytes() - model->rotary().bytes(),
              MicrobatchBytes(spec, DType::kF32, 200));
  }
}

TEST(RunMicrobatch, RecomputeTakesLessMemoryAndChangesNoBit) {
  const plan::ModelSpec spec = SmallSpec();
  const PackedBatch batch = RandomBatch(spec, {130, 70}, 21);
  std::vector<float> expected;
  int64_t more = std::numeric_limits<int64_t>::max();
  for (const auto& [name, recompute] : plan::kRecomputeNames) {
    const auto model = MakeModel(spec, DType::kBF16);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kBF16, 22);
    MemoryGradientSink sink(model->units());
    ASSERT_TRUE(RunMicrobatch(*model, batch, 1.0, weights, sink, recompute).ok()) << name;
    std::vector<float> all;
    for (const plan::UnitSpec& unit : model->units()) {
      all.insert(all.end(), sink.gradient(unit.index).begin(), sink.gradient(unit.index).end());
    }
    expected = expected.empty() ? all : expected;
    EXPECT_EQ(std::memcmp(all.data(), expected.data(), all.size() * sizeof(float)), 0) << name;
    const int64_t planned =
        MicrobatchBytes(spec, DType::kBF16, batch.token_count(), plan::kCpuLossChunk, recompute);
    EXPECT_LE(model->device().allocated_bytes() - model->rotary().bytes(), planned) << name;
    EXPECT_LT(planned, more) << name;
    more = planned;
  }
}

TEST(RunMicrobatch, RefusesABudgetThatDoesNotSuffice) {
  const plan::ModelSpec spec = SmallSpec();
  const auto model = *Transformer::Create(spec, {.threads = 1, .memory_budget_bytes = 100000});
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 19);
  MemoryGradientSink sink(model->units());
  EXPECT_EQ(RunMicrobatch(*model, RandomBatch(spec, {250}, 20), 1.0, weights, sink).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RunMicrobatch, RefusesWeightsOfAnotherType) {
  const plan::ModelSpec spec = SmallSpec();
  const auto model = MakeModel(spec, DType::kBF16);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 21);
  MemoryGradientSink sink(model->units());
  const auto result = RunMicrobatch(*model, RandomBatch(spec, {5}, 22), 1.0, weights, sink);
  EXPECT_THAT(std::string(result.status().message()), testing::HasSubstr("embedding"));
  EXPECT_EQ(weights.held(), 0);
}

// A source that fails at its n-th Get.
class FailingSource : public UnitSource {
 public:
  FailingSource(MemoryUnitSource& inner, int gets) : inner_(inner), gets_(gets) {}
  absl::StatusOr<WeightsView> Get(int unit) override {
    if (gets_-- == 0) {
      return absl::UnavailableError("lost");
    }
    return inner_.Get(unit);
  }
  void Release(int unit) override { inner_.Release(unit); }

 private:
  MemoryUnitSource& inner_;
  int gets_;
};

TEST(RunMicrobatch, PassesOnTheSourcesErrorsAndHoldsNothing) {
  const plan::ModelSpec spec = SmallSpec();
  const auto model = MakeModel(spec);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 23);
  MemoryGradientSink sink(model->units());
  for (int gets = 0; gets < 7; ++gets) {  // embedding, two blocks, head and tied matrix, two blocks
    FailingSource source(weights, gets);
    EXPECT_EQ(RunMicrobatch(*model, RandomBatch(spec, {5}, 24), 1.0, source, sink).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(weights.held(), 0);
  }
  FailingSource source(weights, 7);
  EXPECT_TRUE(RunMicrobatch(*model, RandomBatch(spec, {5}, 24), 1.0, source, sink).ok());
}

TEST(EvaluateLoss, IsTheLossOfTraining) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const plan::ModelSpec spec = FullSpec();
    const auto model = MakeModel(spec, compute);
    MemoryUnitSource weights = RandomWeights(model->units(), compute, 25);
    MemoryGradientSink sink(model->units());
    const PackedBatch batch = RandomBatch(spec, {80, 30}, 26, /*masked=*/true);
    const MicrobatchResult trained = *RunMicrobatch(*model, batch, 1.0, weights, sink);
    const MicrobatchResult evaluated = *EvaluateLoss(*model, batch, weights);
    EXPECT_EQ(trained.loss_sum, evaluated.loss_sum);
    EXPECT_EQ(trained.targets, evaluated.targets);
  }
}

// Records what is asked of the source and the sink, in order.
class RecordingSource final : public UnitSource {
 public:
  RecordingSource(UnitSource& inner, std::vector<std::string>& calls)
      : inner_(inner), calls_(calls) {}
  absl::StatusOr<WeightsView> Get(int unit) override {
    calls_.push_back("get " + std::to_string(unit));
    return inner_.Get(unit);
  }
  void Release(int unit) override { inner_.Release(unit); }

 private:
  UnitSource& inner_;
  std::vector<std::string>& calls_;
};

class RecordingSink final : public GradientSink {
 public:
  RecordingSink(GradientSink& inner, std::vector<std::string>& calls)
      : inner_(inner), calls_(calls) {}
  bool Wants(int unit) override { return inner_.Wants(unit); }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override {
    return inner_.Accumulator(unit);
  }
  absl::Status Done(int unit) override {
    calls_.push_back("done " + std::to_string(unit));
    return inner_.Done(unit);
  }

 private:
  GradientSink& inner_;
  std::vector<std::string>& calls_;
};

TEST(WalkUnits, AsksWhatRunMicrobatchAsks) {
  for (const plan::ModelSpec& spec :
       {SmallSpec(), FullSpec(), testing_model::WithAdapters(FullSpec()),
        testing_model::WithAdapters(FullSpec(), /*all=*/false)}) {
    const auto model = MakeModel(spec);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 3);
    for (const std::set<int>& frozen : {std::set<int>(), {0, 1}, {0, 1, model->head_unit()}}) {
      SCOPED_TRACE(frozen.size());
      FreezingSink gradients(model->units(), frozen);
      std::vector<std::string> run;
      std::vector<std::string> walked;
      {
        RecordingSource source(weights, run);
        RecordingSink sink(gradients, run);
        const PackedBatch batch = RandomBatch(spec, {7, 4}, 4, /*masked=*/false);
        ASSERT_TRUE(RunMicrobatch(*model, batch, 1.0, source, sink).ok());
      }
      RecordingSource source(weights, walked);
      RecordingSink sink(gradients, walked);
      ASSERT_TRUE(WalkUnits(spec, source, sink, nullptr).ok());
      EXPECT_EQ(walked, run);
      EXPECT_EQ(weights.held(), 0);
    }
  }
}

}  // namespace
}  // namespace shoal::worker
