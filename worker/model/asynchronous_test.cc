// The model on a device that runs its work as late as it may, in an order from a seed: the same
// bits as on the CPU, and a host that never touches the device's memory.
#include <cstring>

#include "gtest/gtest.h"
#include "worker/model/access/testing/passing.h"
#include "worker/model/generate.h"
#include "worker/model/resident_unit_access.h"
#include "worker/model/testing/small_model.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::worker {
namespace {

using testing_model::FullSpec;
using testing_model::PassingGradientSink;
using testing_model::PassingUnitSource;
using testing_model::RandomBatch;
using testing_model::RandomPairs;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

constexpr double kLossScale = 0.125;

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<float>> contributions;
};

// Some microbatches, of which the third is the largest: memory grows with it.
Result RunAll(const plan::ModelSpec& spec, DType compute, ComputeDevice compute_device) {
  const auto model = *Transformer::Create(spec, compute, std::move(compute_device));
  Device& device = model->device();
  Stream& stream = model->ops().stream();
  PassingUnitSource source(RandomWeights(model->units(), compute, 5), device, stream);
  PassingGradientSink sink(model->units(), device, stream);
  Result result;
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{30, 5}, {7}, {90, 40, 33}, {61, 2}}) {
    const auto ran = RunMicrobatch(*model, RandomBatch(spec, lengths, 6, /*masked=*/true),
                                   kLossScale, source, sink);
    EXPECT_TRUE(ran.ok()) << ran.status();
    result.losses.push_back(ran->loss_sum);
  }
  const PackedBatch pairs = RandomPairs(spec, {12, 70, 9, 5}, 6, plan::PreferenceLoss::kSigmoid);
  const auto ran = RunMicrobatch(*model, pairs, kLossScale, source, sink);
  EXPECT_TRUE(ran.ok()) << ran.status();
  result.losses.push_back(ran->loss_sum);
  const auto evaluated = EvaluateLoss(*model, pairs, source);
  EXPECT_TRUE(evaluated.ok()) << evaluated.status();
  EXPECT_EQ(evaluated->loss_sum, ran->loss_sum);
  EXPECT_EQ(evaluated->log_probabilities, ran->log_probabilities);
  result.losses.insert(result.losses.end(), ran->log_probabilities.begin(),
                       ran->log_probabilities.end());
  for (const auto& contribution : sink.contributions()) {
    result.contributions.push_back(contribution.values);
  }
  return result;
}

void ExpectSameBits(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.contributions.size(), b.contributions.size());
  for (size_t i = 0; i < a.contributions.size(); ++i) {
    ASSERT_EQ(a.contributions[i].size(), b.contributions[i].size());
    EXPECT_EQ(std::memcmp(a.contributions[i].data(), b.contributions[i].data(),
                          a.contributions[i].size() * sizeof(float)),
              0)
        << "contribution " << i;
  }
}

TEST(AsynchronousModel, HasTheBitsOfTheCpu) {
  for (const plan::ModelSpec& spec : {SmallSpec(/*tied=*/true), FullSpec()}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const Result expected = RunAll(spec, compute, MakeCpuComputeDevice(/*threads=*/1));
      EXPECT_GT(expected.losses[0], 0);
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        ExpectSameBits(RunAll(spec, compute, MakeLateComputeDevice(seed)), expected);
      }
    }
  }
}

TEST(AsynchronousModel, EvaluatesAndGeneratesAsTheCpu) {
  const plan::ModelSpec spec = SmallSpec();
  const PackedBatch batch = RandomBatch(spec, {20, 9}, 8);
  const int32_t positions[] = {3, 28};
  const int32_t prompt[] = {5, 17, 2};
  std::vector<double> losses;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<int32_t>> generated;
  for (uint64_t seed = 0; seed <= 2; ++seed) {
    const auto model = *Transformer::Create(
        spec, DType::kF32, seed == 0 ? MakeCpuComputeDevice(1) : MakeLateComputeDevice(seed));
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 9);
    ResidentUnitSource source = *ResidentUnitSource::Load(*model, weights);
    losses.push_back(EvaluateLoss(*model, batch, source)->loss_sum);
    logits.push_back(*ComputeLogits(*model, batch, positions, source));
    generated.push_back(*Generate(*model, source, prompt, {.max_new_tokens = 6}));
  }
  for (size_t i = 1; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i], losses[0]);
    EXPECT_EQ(logits[i], logits[0]);
    EXPECT_EQ(generated[i], generated[0]);
  }
}

TEST(AsynchronousModel, GradientsThatStayOnTheDeviceAddUp) {
  const plan::ModelSpec spec = SmallSpec(/*tied=*/true);
  const PackedBatch batch = RandomBatch(spec, {33, 4}, 10);
  std::vector<std::vector<std::vector<float>>> gradients;
  for (uint64_t seed = 0; seed <= 2; ++seed) {
    const auto model = *Transformer::Create(
        spec, DType::kF32, seed == 0 ? MakeCpuComputeDevice(1) : MakeLateComputeDevice(seed));
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 11);
    ResidentUnitSource source = *ResidentUnitSource::Load(*model, weights);
    ResidentGradientSink sink = *ResidentGradientSink::Create(*model);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(RunMicrobatch(*model, batch, kLossScale, source, sink).ok());
    }
    std::vector<std::vector<float>>& read = gradients.emplace_back();
    for (const plan::UnitSpec& unit : model->units()) {
      read.push_back(*sink.Read(unit.index));
    }
  }
  EXPECT_GT(gradients[0][1][0] * gradients[0][1][0], 0.0F);
  EXPECT_TRUE(gradients[1] == gradients[0]);
  EXPECT_TRUE(gradients[2] == gradients[0]);
}

TEST(AsynchronousModel, LeavesNothingBehindWhereTheSourceFails) {
  class Failing final : public UnitSource {
   public:
    Failing(UnitSource& source, int gets) : source_(source), gets_(gets) {}
    absl::StatusOr<WeightsView> Get(int unit) override {
      if (--gets_ < 0) {
        return absl::UnavailableError("gone");
      }
      return source_.Get(unit);
    }
    void Release(int unit) override { source_.Release(unit); }

   private:
    UnitSource& source_;
    int gets_;
  };
  const plan::ModelSpec spec = SmallSpec();
  const auto model = *Transformer::Create(spec, DType::kF32, MakeLateComputeDevice(3));
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 12);
  ResidentUnitSource source = *ResidentUnitSource::Load(*model, weights);
  ResidentGradientSink sink = *ResidentGradientSink::Create(*model);
  const PackedBatch batch = RandomBatch(spec, {12, 8}, 13);
  const double loss = EvaluateLoss(*model, batch, source)->loss_sum;
  for (int gets = 0; gets < 6; ++gets) {
    Failing failing(source, gets);
    EXPECT_TRUE(
        absl::IsUnavailable(RunMicrobatch(*model, batch, kLossScale, failing, sink).status()));
    EXPECT_EQ(EvaluateLoss(*model, batch, source)->loss_sum, loss);
  }
}

}  // namespace
}  // namespace shoal::worker
