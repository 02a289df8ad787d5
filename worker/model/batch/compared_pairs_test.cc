// Pairs that are compared with the model without its adapters, which runs before them.
#include <algorithm>
#include <vector>

#include "core/plan/memory/memory_plan.h"
#include "core/plan/schedule/stage_units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/microbatch_model.h"
#include "worker/model/testing/gradients.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAreArray;
using testing_model::FullSpec;
using testing_model::MakeModel;
using testing_model::RandomPairs;
using testing_model::RandomWeights;

class RecordingSource final : public UnitSource {
 public:
  explicit RecordingSource(UnitSource& source) : source_(source) {}
  absl::StatusOr<WeightsView> Get(int unit) override {
    gets.push_back(unit);
    return source_.Get(unit);
  }
  void Release(int unit) override { source_.Release(unit); }

  std::vector<int> gets;

 private:
  UnitSource& source_;
};

class ComparedWithoutAdapters : public ::testing::Test {
 protected:
  ComparedWithoutAdapters() {
    pairs_.preference->reference = plan::Reference::kAdapterOff;
    pairs_.references.clear();
    const auto base = MakeModel(FullSpec());
    MemoryUnitSource alone = RandomWeights(base->units(), DType::kF32, 5);
    given_ = pairs_;
    given_.preference->reference = plan::Reference::kPrecompute;
    given_.references = EvaluateLoss(*base, given_, alone)->log_probabilities;
  }
  // What a pass gets, behind what it compares with.
  std::vector<int> Uses(const std::vector<int>& pass) const {
    std::vector<int> uses = plan::EvaluationUses(FullSpec(), plan::AllUnits(FullSpec()));
    uses.insert(uses.end(), pass.begin(), pass.end());
    return uses;
  }
  void ExpectAsGiven(const MicrobatchResult& result, const MicrobatchResult& given) const {
    EXPECT_THAT(result.references, ElementsAreArray(given_.references));
    EXPECT_EQ(result.loss_sum, given.loss_sum);
    EXPECT_EQ(result.log_probabilities, given.log_probabilities);
    EXPECT_NE(result.log_probabilities, result.references) << "the adapters do something";
  }

  void ExpectToTrainAsGiven() {
    MemoryGradientSink sink(model_->units());
    MemoryGradientSink expected(model_->units());
    RecordingSource source(weights_);
    const MicrobatchResult result = model_->Run(pairs_, 0.5, source, sink).value();
    ExpectAsGiven(result, RunMicrobatch(*plain_, given_, 0.5, weights_, expected).value());
    for (const plan::UnitSpec& unit : model_->units()) {
      EXPECT_TRUE(std::ranges::equal(sink.gradient(unit.index), expected.gradient(unit.index)))
          << unit.name;
    }
    EXPECT_THAT(source.gets, ElementsAreArray(Uses(plan::UseOrder(spec_))));
  }

  const plan::ModelSpec spec_ = testing_model::WithAdapters(FullSpec());
  const std::unique_ptr<MicrobatchModel> model_ = MakeTransformerModel(MakeModel(spec_));
  const std::unique_ptr<Transformer> plain_ = MakeModel(spec_);
  MemoryUnitSource weights_ = RandomWeights(model_->units(), DType::kF32, 5);
  PackedBatch pairs_ = RandomPairs(spec_, {9, 23, 40, 7}, 6, plan::PreferenceLoss::kSigmoid);
  PackedBatch given_;  // with what they are compared with
};

TEST_F(ComparedWithoutAdapters, TrainsAsWithWhatTheModelAloneGives) { ExpectToTrainAsGiven(); }

TEST_F(ComparedWithoutAdapters, DropsNothingOfWhatTheyAreComparedWith) {
  pairs_.dropout = {.probability = 0.25, .seed = 5, .step = 2, .samples = {8, 8, 3, 3}};
  given_.dropout = pairs_.dropout;
  ExpectToTrainAsGiven();
}

TEST_F(ComparedWithoutAdapters, IsEvaluatedSo) {
  RecordingSource source(weights_);
  const MicrobatchResult result = model_->Evaluate(pairs_, source).value();
  ExpectAsGiven(result, EvaluateLoss(*plain_, given_, weights_).value());
  EXPECT_THAT(source.gets,
              ElementsAreArray(Uses(plan::EvaluationUses(spec_, plan::AllUnits(spec_)))));
}

TEST_F(ComparedWithoutAdapters, OthersAreRunAsTheyAre) {
  RecordingSource source(weights_);
  const MicrobatchResult result = model_->Evaluate(given_, source).value();
  EXPECT_TRUE(result.references.empty());
  EXPECT_THAT(source.gets, ElementsAreArray(plan::EvaluationUses(spec_, plan::AllUnits(spec_))));
}

}  // namespace
}  // namespace shoal::worker
