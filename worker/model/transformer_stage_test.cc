#include "worker/model/transformer_stage.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/stage_units.h"
#include "worker/model/runner.h"
#include "worker/model/testing.h"

namespace shoal::worker {
namespace {

using plan::Recompute;
using plan::UnitRange;
using testing_model::FullSpec;
using testing_model::RandomBatch;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

MATCHER(IsOk, "is ok") { return arg.ok(); }
MATCHER_P(HasCode, code, "") { return arg.code() == code; }

constexpr double kLossScale = 0.0625;

// Memory of exactly that many bytes, which begins as what no computation can use, ends as that too,
// and notices what is written behind it.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        data_(static_cast<std::byte*>(std::aligned_alloc(64, RoundUp(bytes, 64) + 64))) {
    std::memset(data_, 0xFF, bytes_ + kGuard);  // NaN in fp32, bf16 and double
  }
  ~Memory() {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(data_[bytes_ + i], std::byte{0xFF}) << "written behind the end";
    }
    std::memset(data_, 0xFF, bytes_);
    std::free(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }

  // The same contents elsewhere; what was here is void.
  static std::unique_ptr<Memory> Moved(std::unique_ptr<Memory> from) {
    auto to = std::make_unique<Memory>(static_cast<int64_t>(from->bytes_));
    std::memcpy(to->data_, from->data_, from->bytes_);
    return to;
  }

 private:
  static constexpr size_t kGuard = 64;
  const size_t bytes_;
  std::byte* const data_;
};

// Keeps every contribution by itself, by unit and microbatch.
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

// The step by chunks, each of them the only one of a stage of its own or all of them in one stage,
// in an order of actions drawn from a seed among those that dependencies allow. Whatever may lie
// elsewhere at the next call does.
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
    std::unique_ptr<Memory> activations;
    std::unique_ptr<Memory> gradients;  // between B and W
  };
  struct OfMicrobatch {
    int forwards = 0;
    int backwards = 0;
    std::vector<OfChunk> chunks;
    std::unique_ptr<Memory> message;  // what goes from chunk to chunk
    std::vector<int> weights;         // chunks whose W is due
  };

  int Last() const { return static_cast<int>(options_.chunks.size()) - 1; }
  TransformerStage& StageOf(int chunk) {
    return *stages_[options_.one_stage ? 0 : static_cast<size_t>(chunk)];
  }
  int NumberOf(int chunk) const { return options_.one_stage ? chunk : 0; }
  plan::ChunkBytes BytesOf(int chunk, int m) { return StageOf(chunk).BytesOf(NumberOf(chunk), m); }

  // One action of the microbatch; false when all are done.
  bool Advance(int m) {
    OfMicrobatch& of = microbatches_[static_cast<size_t>(m)];
    sink_->AtMicrobatch(m);
    for (OfChunk& chunk : of.chunks) {
      if (chunk.activations != nullptr) {
        chunk.activations = Memory::Moved(std::move(chunk.activations));
      }
      if (chunk.gradients != nullptr) {
        chunk.gradients = Memory::Moved(std::move(chunk.gradients));
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
    at.activations = std::make_unique<Memory>(bytes.activations);
    auto output = chunk < Last() ? std::make_unique<Memory>(bytes.message) : nullptr;
    EXPECT_THAT(StageOf(chunk).Forward(NumberOf(chunk), m, at.activations->data(), Data(of.message),
                                       Data(output)),
                IsOk());
    of.message = std::move(output);
  }

  void Backward(int m, OfMicrobatch& of, int chunk) {
    const plan::ChunkBytes bytes = BytesOf(chunk, m);
    OfChunk& at = of.chunks[static_cast<size_t>(chunk)];
    auto d_input = chunk > 0 ? std::make_unique<Memory>(bytes.message) : nullptr;
    if (options_.split) {
      at.gradients = std::make_unique<Memory>(bytes.gradients);
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

  static std::byte* Data(const std::unique_ptr<Memory>& memory) {
    return memory == nullptr ? nullptr : memory->data();
  }

  const plan::ModelSpec spec_;
  const Options options_;
  Random random_;
  std::vector<std::unique_ptr<TransformerStage>> stages_;
  std::vector<OfMicrobatch> microbatches_;
  ContributionSink* sink_ = nullptr;
};

plan::ModelSpec ThreeLayers(plan::ModelSpec spec) {
  spec.layers = 3;
  return spec;
}

std::vector<PackedBatch> RaggedBatches(const plan::ModelSpec& spec) {
  PackedBatch no_targets = RandomBatch(spec, {12}, 5);
  std::ranges::fill(no_targets.labels, formats::kIgnoredLabel);
  return {RandomBatch(spec, {70, 7, 33}, 1, /*masked=*/true), RandomBatch(spec, {1}, 2),
          RandomBatch(spec, {130, 62}, 3), no_targets, RandomBatch(spec, {64}, 4)};
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
  for (const plan::ModelSpec& model : {SmallSpec(), FullSpec(), tied}) {
    const plan::ModelSpec spec = ThreeLayers(model);
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
  const plan::ModelSpec spec = ThreeLayers(SmallSpec());
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

// What a stage asks of source and sink.
class RecordingAccess final : public UnitSource, public GradientSink {
 public:
  explicit RecordingAccess(const std::vector<plan::UnitSpec>& units)
      : weights_(RandomWeights(units, DType::kF32, 3)), gradients_(units), done_(units.size(), 0) {}

  absl::StatusOr<WeightsView> Get(int unit) override {
    if (gets_left_-- == 0) {
      return absl::UnavailableError("lost");
    }
    gets_.push_back(unit);
    return weights_.Get(unit);
  }
  void Release(int unit) override { weights_.Release(unit); }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override {
    return gradients_.Accumulator(unit);
  }
  absl::Status Done(int unit) override {
    ++done_[static_cast<size_t>(unit)];
    return absl::OkStatus();
  }

  void FailAfter(int64_t gets) { gets_left_ = gets; }
  int64_t held() const { return weights_.held(); }
  const std::vector<int>& gets() const { return gets_; }
  const std::vector<int>& done() const { return done_; }

 private:
  MemoryUnitSource weights_;
  MemoryGradientSink gradients_;
  int64_t gets_left_ = -1;
  std::vector<int> gets_;
  std::vector<int> done_;
};

// A stage with both ends of the model: runs F and B (split or joined) of its two chunks.
class BothEnds {
 public:
  explicit BothEnds(const plan::ModelSpec& spec)
      : stage_(*Transformer::Create(spec, {.threads = 1}), kChunks, Recompute::kFull),
        access(stage_.units()) {}

  absl::Status Run(const PackedBatch& batch) {
    SHOAL_RETURN_IF_ERROR(stage_.BeginStep({&batch, 1}, 1.0, access, access));
    const plan::ChunkBytes first = stage_.BytesOf(0, 0);
    const plan::ChunkBytes last = stage_.BytesOf(1, 0);
    Memory first_activations(first.activations), last_activations(last.activations);
    Memory gradients(last.gradients), message(first.message), between(first.message);
    std::memset(between.data(), 0, static_cast<size_t>(first.message));  // of the other stages
    SHOAL_RETURN_IF_ERROR(stage_.Forward(0, 0, first_activations.data(), nullptr, message.data()));
    SHOAL_RETURN_IF_ERROR(stage_.Forward(1, 0, last_activations.data(), between.data(), nullptr));
    SHOAL_RETURN_IF_ERROR(stage_.BackwardInput(1, 0, last_activations.data(), gradients.data(),
                                               nullptr, message.data()));
    SHOAL_RETURN_IF_ERROR(stage_.Backward(0, 0, first_activations.data(), between.data(), nullptr));
    return stage_.BackwardWeights(1, 0, last_activations.data(), gradients.data());
  }

  static constexpr UnitRange kChunks[] = {{0, 2}, {3, 2}};
  static plan::StageActions Actions() {
    using enum plan::Operation;
    return {{kForward, 0, 0},
            {kForward, 1, 0},
            {kBackwardInput, 1, 0},
            {kBackward, 0, 0},
            {kBackwardWeights, 1, 0}};
  }

 private:
  TransformerStage stage_;

 public:
  RecordingAccess access;
};

TEST(TransformerStage, AsksForWhatThePlanSays) {
  for (const bool tied : {true, false}) {
    const plan::ModelSpec spec = ThreeLayers(SmallSpec(tied));
    BothEnds stage(spec);
    ASSERT_THAT(stage.Run(RandomBatch(spec, {9, 4}, 2)), IsOk());
    EXPECT_EQ(stage.access.gets(),
              plan::StageUseOrder(spec, BothEnds::Actions(), BothEnds::kChunks));
    EXPECT_EQ(stage.access.done(), plan::StageContributions(spec, BothEnds::kChunks));
    EXPECT_EQ(stage.access.held(), 0);
  }
}

TEST(TransformerStage, PassesOnTheSourcesErrorsAndHoldsNothing) {
  const plan::ModelSpec spec = ThreeLayers(SmallSpec());
  const size_t gets = plan::StageUseOrder(spec, BothEnds::Actions(), BothEnds::kChunks).size();
  for (size_t get = 0; get < gets; ++get) {
    BothEnds stage(spec);
    stage.access.FailAfter(static_cast<int64_t>(get));
    EXPECT_THAT(stage.Run(RandomBatch(spec, {9, 4}, 2)), HasCode(absl::StatusCode::kUnavailable));
    EXPECT_EQ(stage.access.held(), 0);
  }
}

TEST(TransformerStage, RefusesWhatDoesNotFitAndBatchesThatAreNone) {
  const plan::ModelSpec spec = ThreeLayers(SmallSpec());
  const UnitRange all = plan::AllUnits(spec);
  TransformerStage stage(*Transformer::Create(spec, {.threads = 1, .memory_budget_bytes = 50'000}),
                         {&all, 1}, Recompute::kNone);
  RecordingAccess access(stage.units());
  const std::vector<PackedBatch> large = {RandomBatch(spec, {500}, 1)};
  EXPECT_THAT(stage.BeginStep(large, 1.0, access, access),
              HasCode(absl::StatusCode::kResourceExhausted));
  std::vector<PackedBatch> wrong = {RandomBatch(spec, {5}, 1), RandomBatch(spec, {5}, 1)};
  wrong[1].tokens[3] = static_cast<int32_t>(spec.vocabulary);
  const absl::Status refused = stage.BeginStep(wrong, 1.0, access, access);
  EXPECT_THAT(refused, HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(Message(refused)), testing::HasSubstr("microbatch 1 of the step"));
}

}  // namespace
}  // namespace shoal::worker
