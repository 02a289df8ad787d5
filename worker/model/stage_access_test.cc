// What a stage asks of source and sink, and what it refuses.
#include <cstring>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/plan/schedule/stage_units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/testing/guarded_memory.h"
#include "worker/model/testing/small_model.h"
#include "worker/model/transformer_stage.h"

namespace shoal::worker {
namespace {

using plan::Recompute;
using plan::UnitRange;
using testing_model::GuardedMemory;
using testing_model::RandomBatch;
using testing_model::RandomWeights;
using testing_model::SmallSpec;
using testing_model::WithLayers;

// Records the calls.
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
    GuardedMemory first_activations(first.activations), last_activations(last.activations);
    GuardedMemory gradients(last.gradients), message(first.message), between(first.message);
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
    const plan::ModelSpec spec = WithLayers(SmallSpec(tied), 3);
    BothEnds stage(spec);
    ASSERT_THAT(stage.Run(RandomBatch(spec, {9, 4}, 2)), IsOk());
    EXPECT_EQ(stage.access.gets(),
              plan::StageUseOrder(spec, BothEnds::Actions(), BothEnds::kChunks));
    EXPECT_EQ(stage.access.done(), plan::StageContributions(spec, BothEnds::kChunks));
    EXPECT_EQ(stage.access.held(), 0);
  }
}

TEST(TransformerStage, PassesOnTheSourcesErrorsAndHoldsNothing) {
  const plan::ModelSpec spec = WithLayers(SmallSpec(), 3);
  const size_t gets = plan::StageUseOrder(spec, BothEnds::Actions(), BothEnds::kChunks).size();
  for (size_t get = 0; get < gets; ++get) {
    BothEnds stage(spec);
    stage.access.FailAfter(static_cast<int64_t>(get));
    EXPECT_THAT(stage.Run(RandomBatch(spec, {9, 4}, 2)), HasCode(absl::StatusCode::kUnavailable));
    EXPECT_EQ(stage.access.held(), 0);
  }
}

TEST(TransformerStage, RefusesWhatDoesNotFitAndBatchesThatAreNone) {
  const plan::ModelSpec spec = WithLayers(SmallSpec(), 3);
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
