#include "worker/model/block.h"

#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/held_unit.h"
#include "worker/model/microbatch_input.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using testing_model::FullSpec;
using testing_model::PostNormSpec;
using testing_model::RandomBatch;
using testing_model::RandomWeights;

// Two blocks; keeps the gradient of each block's B, so that W can run at any later time.
struct TwoBlocks {
  BlockActivations activations[2];
  BlockGradients gradients[2];
  Matrix out, d_out, d_middle, d_in;
};

class BlockTest : public testing::TestWithParam<std::tuple<plan::Norms, DType>> {};

// W right after each B (as in RunMicrobatch) or after all of them, in the opposite order: the same
// bits.
TEST_P(BlockTest, WeightGradientsMayComeLate) {
  const auto [norms, compute] = GetParam();
  const plan::ModelSpec spec = norms == plan::Norms::kPre    ? FullSpec()
                               : norms == plan::Norms::kPost ? PostNormSpec()
                                                             : testing_model::SandwichSpec();
  const auto model = *Transformer::Create(spec, {.compute = compute, .threads = 2});
  MemoryUnitSource weights = RandomWeights(model->units(), compute, 1);
  const PackedBatch batch = RandomBatch(spec, {20, 13, 31}, 2);
  std::vector<std::vector<std::byte>> results;
  for (const bool late : {false, true}) {
    Workspace workspace(model->device(), model->ops().stream());
    MicrobatchInput microbatch = *MicrobatchInput::Create(batch, spec.vocabulary);
    const int64_t rows = microbatch.rows();
    ASSERT_TRUE(model->rotary().Reserve(microbatch.longest(), model->ops().stream()).ok());
    const TwoBlocks two = *workspace.Fill([&](Carver& carver) {
      microbatch.Carve(carver);
      TwoBlocks t;
      for (int i = 0; i < 2; ++i) {
        t.activations[i] = BlockActivations::Carve(carver, spec, compute, rows);
        t.gradients[i] = BlockGradients::Carve(carver, carver, spec, compute, rows);
      }
      for (Matrix* matrix : {&t.out, &t.d_out, &t.d_middle, &t.d_in}) {
        *matrix = carver.TakeMatrix(compute, rows, spec.hidden);
      }
      return t;
    });
    Ops& ops = model->ops();
    microbatch.Load(ops.stream());
    const SequenceContext of_first = microbatch.sequences(model->rotary(), 1);
    const SequenceContext of_second = microbatch.sequences(model->rotary(), 2);
    const HeldUnit embedding = *HeldUnit::Get(*model, weights, 0);
    const HeldBlock first = *HeldBlock::Get(*model, weights, 1);
    const HeldBlock second = *HeldBlock::Get(*model, weights, 2);
    ops.EmbeddingForward(microbatch.token_ids(), batch.token_count(),
                         embedding.matrix(0, spec.vocabulary, spec.hidden),
                         model->embedding_scale(), two.activations[0].input);
    BlockForward(ops, first.weights(*model), of_first, two.activations[0],
                 two.activations[1].input);
    BlockForward(ops, second.weights(*model), of_second, two.activations[1], two.out);

    BlockGradients g0 = two.gradients[0];
    BlockGradients g1 = two.gradients[1];
    g1.output = two.out;  // d(|out|^2 / 2)
    g0.output = two.d_middle;
    MemoryGradientSink sink(model->units());
    const auto weight_gradient = [&](int block, const BlockGradients& g) {
      BlockBackwardWeights(ops, spec, model->layout(block + 1), two.activations[block], g,
                           *sink.Gradient(block + 1));
    };
    BlockBackwardInput(ops, second.weights(*model), of_second, two.activations[1],
                       plan::Recompute::kNone, g1, two.d_middle);
    if (!late) {
      weight_gradient(1, g1);
    }
    BlockBackwardInput(ops, first.weights(*model), of_first, two.activations[0],
                       plan::Recompute::kNone, g0, two.d_in);
    weight_gradient(0, g0);
    if (late) {
      weight_gradient(1, g1);
    }
    ASSERT_TRUE(ops.Finish().ok());
    std::vector<std::byte>& result = results.emplace_back();
    const auto append = [&](const void* data, int64_t bytes) {
      const auto* begin = static_cast<const std::byte*>(data);
      result.insert(result.end(), begin, begin + bytes);
    };
    append(two.d_in.data, rows * spec.hidden * SizeOf(compute));
    for (const int unit : {1, 2}) {
      append(sink.gradient(unit).data(), static_cast<int64_t>(sink.gradient(unit).size_bytes()));
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(Types, BlockTest,
                         testing::Combine(testing::Values(plan::Norms::kPre, plan::Norms::kPost,
                                                          plan::Norms::kSandwich),
                                          testing::Values(DType::kF32, DType::kBF16)));

TEST(BlockLayout, RefusesMatricesWithPaddingBetweenThem) {
  plan::ModelSpec spec = testing_model::SmallSpec();
  EXPECT_TRUE(ValidateLayout(spec).ok());
  spec.hidden = 2;
  spec.kinds[0].mlp.intermediate = 3;
  EXPECT_EQ(ValidateLayout(spec).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shoal::worker
