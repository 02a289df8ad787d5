#include "worker/model/transformer_stage.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/runner.h"
#include "worker/model/testing/guarded_memory.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using plan::Recompute;
using plan::UnitRange;
using testing_model::FullSpec;
using testing_model::GuardedMemory;
using testing_model::PostNormSpec;
using testing_model::RandomBatch;
using testing_model::RandomPairs;
using testing_model::RandomWeights;
using testing_model::SandwichSpec;
using testing_model::SmallSpec;
using testing_model::WithLayers;

constexpr double kLossScale = 0.0625;

// Keeps every contribution separately, by unit and microbatch.
class ContributionSink final : public GradientSink {
 public:
  explicit ContributionSink(const std::vector<plan::UnitSpec>& units) : units_(units) {}
  void AtMicrobatch(int microbatch) { microbatch_ = microbatch; }

  absl::StatusOr<std::span<float>> Accumulator(int unit) override {
    std::vector<float>& buffer = filling_[unit];
    buffer.resize(static_cast<size_t>(units_[static_cast<size_t>(unit)].count), 0.0F);
    return std::span<float>(buffer);
  }
  absl::Status Done(int unit) override {
    contributions_[{unit, microbatch_}].push_back(std::move(filling_.at(unit)));
    filling_.erase(unit);
    return absl::OkStatus();
  }
  bool filling() const { return !filling_.empty(); }
  using Contributions = std::map<std::pair<int, int>, std::vector<std::vector<float>>>;
  const Contributions& contributions() const { return contributions_; }

 private:
  const std::vector<plan::UnitSpec> units_;
  int microbatch_ = 0;
  std::map<int, std::vector<float>> filling_;
  Contributions contributions_;
};

struct StepOutcome {
  std::vector<double> losses;
  ContributionSink::Contributions contributions;
};

void ExpectSameBits(const StepOutcome& a, const StepOutcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.contributions.size(), b.contributions.size());
  for (const auto& [key, values] : a.contributions) {
    const auto& others = b.contributions.at(key);
    ASSERT_EQ(values.size(), others.size()) << "unit " << key.first;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::memcmp(values[i].data(), others[i].data(), values[i].size() * sizeof(float)),
                0)
          << "unit " << key.first << ", microbatch " << key.second << ", contribution " << i;
    }
  }
}

StepOutcome RunAlone(const plan::ModelSpec& spec, DType compute,
                     const std::vector<PackedBatch>& batches, MemoryUnitSource& weights) {
  const auto model = *Transformer::Create(spec, {.compute = compute, .threads = 1});
  ContributionSink sink(model->units());
  StepOutcome outcome;
  for (size_t m = 0; m < batches.size(); ++m) {
    sink.AtMicrobatch(static_cast<int>(m));
    outcome.losses.push_back(
        RunMicrobatch(*model, batches[m], kLossScale, weights, sink)->loss_sum);
  }
  outcome.contributions = sink.contributions();
  return outcome;
}

// Runs the step by chunks, each the only one of its own stage or all of them in one stage, in an
// order of actions drawn from a seed among those that dependencies allow. Moves everything that may
// move between calls.
class ChunkedStep {
 public:
  struct Options {
    std::vector<UnitRange> chunks;
    Recompute recompute = Recompute::kNone;
    bool split = false;
    bool one_stage = false;
    uint64_t seed = 1;
  };

  ChunkedStep(const plan::ModelSpec& spec, DType compute, const Options& options)
      : spec_(spec), options_(options), random_(options.seed) {
    const size_t stages = options.one_stage ? 1 : options.chunks.size();
    for (size_t i = 0; i < stages; ++i) {
      auto model = *Transformer::Create(spec, {.compute = compute, .threads = 1});
      const std::span<const UnitRange> chunks = options_.chunks;
      stages_.push_back(std::make_unique<TransformerStage>(
          std::move(model), options.one_stage ? chunks : chunks.subspan(i, 1), options.recompute));
    }
  }

  StepOutcome Run(const std::vector<PackedBatch>& batches, UnitSource& weights) {
    ContributionSink sink(stages_[0]->units());
    sink_ = &sink;
    for (auto& stage : stages_) {
      EXPECT_THAT(stage->BeginStep(batches, kLossScale, weights, sink), IsOk());
    }
    microbatches_.clear();
    microbatches_.resize(batches.size());
    std::vector<int> unfinished(batches.size());
    for (size_t m = 0; m < batches.size(); ++m) {
      microbatches_[m].chunks.resize(options_.chunks.size());
      unfinished[m] = static_cast<int>(m);
    }
    while (!unfinished.empty()) {
      const size_t pick = random_.Below(unfinished.size());
      if (!Advance(unfinished[pick])) {
        unfinished.erase(unfinished.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      EXPECT_FALSE(sink.filling());
    }
    for (auto& stage : stages_) {
      EXPECT_THAT(stage->EndStep(), IsOk());
    }
    StepOutcome outcome{.contributions = sink.contributions()};
    for (size_t m = 0; m < batches.size(); ++m) {
      const MicrobatchResult result = StageOf(Last()).result(static_cast<int>(m));
      EXPECT_EQ(result.tokens, batches[m].token_count());
      EXPECT_EQ(result.targets, batches[m].target_count());
      outcome.losses.push_back(result.loss_sum);
    }
    return outcome;
  }

  int64_t own_bytes() const {
    int64_t bytes = 0;
    for (const auto& stage : stages_) {
      bytes += stage->own_bytes();
    }
    return bytes;
  }

 private:
  struct OfChunk {
    std::unique_ptr<GuardedMemory> activations;
    std::unique_ptr<GuardedMemory> gradients;  // between B and W
  };
  struct OfMicrobatch {
    int forwards = 0;
    int backwards = 0;
    std::vector<OfChunk> chunks;
    std::unique_ptr<GuardedMemory> message;  // what passes from chunk to chunk
    std::vector<int> weights;                // chunks whose W is due
  };

  int Last() const { return static_cast<int>(options_.chunks.size()) - 1; }
  TransformerStage& StageOf(int chunk) {
    return *stages_[options_.one_stage ? 0 : static_cast<size_t>(chunk)];
  }
  int NumberOf(int chunk) const { return options_.one_stage ? chunk : 0; }
  plan::ChunkBytes BytesOf(int chunk, int m) { return StageOf(chunk).BytesOf(NumberOf(chunk), m); }

  // Runs one action of the microbatch; false when all are done.
  bool Advance(int m) {
    OfMicrobatch& of = microbatches_[static_cast<size_t>(m)];
    sink_->AtMicrobatch(m);
    for (OfChunk& chunk : of.chunks) {
      if (chunk.activations != nullptr) {
        chunk.activations = GuardedMemory::Moved(std::move(chunk.activations));
      }
      if (chunk.gradients != nullptr) {
        chunk.gradients = GuardedMemory::Moved(std::move(chunk.gradients));
      }
    }
    if (of.forwards <= Last()) {
      Forward(m, of, of.forwards++);
    } else if (!of.weights.empty() && (of.backwards > Last() || random_.Below(3) == 0)) {
      const size_t pick = random_.Below(of.weights.size());
      Weights(m, of, of.weights[pick]);
      of.weights.erase(of.weights.begin() + static_cast<std::ptrdiff_t>(pick));
    } else if (of.backwards <= Last()) {
      Backward(m, of, Last() - of.backwards++);
    } else {
      return false;
    }
    return true;
  }

  void Forward(int m, OfMicrobatch& of, int chunk) {
    const plan::ChunkBytes bytes = BytesOf(chunk, m);
    OfChunk& at = of.chunks[static_cast<size_t>(chunk)];
    at.activations = std::make_unique<GuardedMemory>(bytes.activations);
    auto output = chunk < Last() ? std::make_unique<GuardedMemory>(bytes.message) : nullptr;
    EXPECT_THAT(StageOf(chunk).Forward(NumberOf(chunk), m, at.activations->data(), Data(of.message),
                                       Data(output)),
                IsOk());
    of.message = std::move(output);
  }

  void Backward(int m, OfMicrobatch& of, int chunk) {
    const plan::ChunkBytes bytes = BytesOf(chunk, m);
    OfChunk& at = of.chunks[static_cast<size_t>(chunk)];
    auto d_input = chunk > 0 ? std::make_unique<GuardedMemory>(bytes.message) : nullptr;
    if (options_.split) {
      at.gradients = std::make_unique<GuardedMemory>(bytes.gradients);
      EXPECT_THAT(
          StageOf(chunk).BackwardInput(NumberOf(chunk), m, at.activations->data(),
                                       at.gradients->data(), Data(of.message), Data(d_input)),
          IsOk());
      of.weights.push_back(chunk);
    } else {
      EXPECT_THAT(StageOf(chunk).Backward(NumberOf(chunk), m, at.activations->data(),
                                          Data(of.message), Data(d_input)),
                  IsOk());
      at.activations = nullptr;
    }
    of.message = std::move(d_input);
  }

  void Weights(int m, OfMicrobatch& of, int chunk) {
    OfChunk& at = of.chunks[static_cast<size_t>(chunk)];
    EXPECT_THAT(StageOf(chunk).BackwardWeights(NumberOf(chunk), m, at.activations->data(),
                                               at.gradients->data()),
                IsOk());
    at = {};
  }

  static std::byte* Data(const std::unique_ptr<GuardedMemory>& memory) {
    return memory == nullptr ? nullptr : memory->data();
  }

  const plan::ModelSpec spec_;
  const Options options_;
  Random random_;
  std::vector<std::unique_ptr<TransformerStage>> stages_;
  std::vector<OfMicrobatch> microbatches_;
  ContributionSink* sink_ = nullptr;
};

std::vector<PackedBatch> RaggedBatches(const plan::ModelSpec& spec) {
  PackedBatch no_targets = RandomBatch(spec, {12}, 5);
  std::ranges::fill(no_targets.labels, formats::kIgnoredLabel);
  PackedBatch dropping = RandomBatch(spec, {50, 20}, 9);
  dropping.dropout = {.probability = 0.25, .seed = 1, .step = 2, .samples = {8, 3}};
  return {RandomBatch(spec, {70, 7, 33}, 1, /*masked=*/true),
          dropping,
          RandomBatch(spec, {1}, 2),
          RandomPairs(spec, {40, 9}, 6, plan::PreferenceLoss::kIpo),
          RandomBatch(spec, {130, 62}, 3),
          no_targets,
          RandomBatch(spec, {64}, 4)};
}

struct BitsCase {
  DType compute;
  Recompute recompute;
  bool split;
};

class StageBits : public testing::TestWithParam<BitsCase> {};

TEST_P(StageBits, AreThoseOfOneWorkerHoweverLayersAreSplit) {
  const auto [compute, recompute, split] = GetParam();
  plan::ModelSpec tied = FullSpec();
  tied.tied_embeddings = true;
  uint64_t seed = 1;
  for (const plan::ModelSpec& model : {SmallSpec(), FullSpec(), tied, PostNormSpec(),
                                       SandwichSpec(), testing_model::WithAdapters(FullSpec())}) {
    const plan::ModelSpec spec = WithLayers(model, 3);
    MemoryUnitSource weights = RandomWeights(plan::BuildUnits(spec), compute, 7);
    const std::vector<PackedBatch> batches = RaggedBatches(spec);
    const StepOutcome alone = RunAlone(spec, compute, batches, weights);
    const std::vector<std::vector<UnitRange>> splits = {{{0, 5}},
                                                        {{0, 2}, {2, 3}},
                                                        {{0, 1}, {1, 3}, {4, 1}},
                                                        {{0, 4}, {4, 1}},
                                                        {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}};
    for (const std::vector<UnitRange>& chunks : splits) {
      for (const bool one_stage : {false, true}) {
        SCOPED_TRACE(testing::Message() << chunks.size() << " chunks, one stage " << one_stage
                                        << ", tied " << spec.tied_embeddings);
        ChunkedStep step(spec, compute,
                         {.chunks = chunks,
                          .recompute = recompute,
                          .split = split,
                          .one_stage = one_stage,
                          .seed = seed++});
        ExpectSameBits(step.Run(batches, weights), alone);
        EXPECT_EQ(weights.held(), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StageBits, testing::ValuesIn([] {
                           std::vector<BitsCase> cases;
                           for (const DType compute : {DType::kF32, DType::kBF16}) {
                             for (const auto& [name, recompute] : plan::kRecomputeNames) {
                               for (const bool split : {false, true}) {
                                 cases.push_back({compute, recompute, split});
                               }
                             }
                           }
                           return cases;
                         }()),
                         [](const auto& info) {
                           const BitsCase& c = info.param;
                           return std::string(Name(c.compute)) + "_" +
                                  std::string(plan::Name(c.recompute)) +
                                  (c.split ? "_split" : "_joined");
                         });

TEST(TransformerStage, TakesNothingMoreAfterTheLargestStep) {
  const plan::ModelSpec spec = WithLayers(SmallSpec(), 3);
  MemoryUnitSource weights = RandomWeights(plan::BuildUnits(spec), DType::kF32, 7);
  ChunkedStep step(spec, DType::kF32,
                   {.chunks = {{0, 2}, {2, 3}}, .recompute = Recompute::kLight, .split = true});
  step.Run(RaggedBatches(spec), weights);
  const int64_t bytes = step.own_bytes();
  EXPECT_GT(bytes, 0);
  step.Run({RandomBatch(spec, {3}, 8)}, weights);
  const StepOutcome again = step.Run(RaggedBatches(spec), weights);
  EXPECT_EQ(step.own_bytes(), bytes);
  ExpectSameBits(again, RunAlone(spec, DType::kF32, RaggedBatches(spec), weights));
}

}  // namespace
}  // namespace shoal::worker
