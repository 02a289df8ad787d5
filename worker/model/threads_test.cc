// A microbatch's loss and gradients have the same bits on any number of threads.
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using testing_model::FullSpec;
using testing_model::RandomBatch;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

// Returns the loss, then every unit's gradient.
std::vector<double> Train(const plan::ModelSpec& spec, DType compute,
                          const std::vector<int64_t>& lengths, int threads) {
  const auto model = *Transformer::Create(spec, {.compute = compute, .threads = threads});
  MemoryUnitSource weights = RandomWeights(model->units(), compute, 3);
  MemoryGradientSink sink(model->units());
  const PackedBatch batch = RandomBatch(spec, lengths, 4, /*masked=*/true);
  const auto result = RunMicrobatch(*model, batch, 1.0 / 64, weights, sink);
  EXPECT_TRUE(result.ok()) << result.status().message();
  std::vector<double> all = {result->loss_sum};
  for (const plan::UnitSpec& unit : model->units()) {
    const std::span<const float> gradient = sink.gradient(unit.index);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

void ExpectSameBits(const plan::ModelSpec& spec, DType compute,
                    const std::vector<int64_t>& lengths) {
  const std::vector<double> one = Train(spec, compute, lengths, 1);
  for (const int threads : {2, 3, 4, 8}) {
    EXPECT_TRUE(Train(spec, compute, lengths, threads) == one) << threads << " threads";
  }
}

TEST(Threads, ChangeNoBitOfASmallModel) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    ExpectSameBits(SmallSpec(), compute, {17, 1, 30});
    ExpectSameBits(FullSpec(), compute, {120, 70});
  }
}

// The widths of a real model, few layers and a small vocabulary: seconds.
TEST(Threads, ChangeNoBitOfWideLayers) {
  plan::ModelSpec spec = *plan::NamedShape("25m");
  spec.layers = 2;
  spec.vocabulary = 1000;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    ExpectSameBits(spec, compute, {37, 5});
    ExpectSameBits(spec, compute, {300, 259});
  }
}

}  // namespace
}  // namespace shoal::worker
