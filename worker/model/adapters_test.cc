// Adapters in the block: gradients, recomputing, and what they leave as it is.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/block.h"
#include "worker/model/held_unit.h"
#include "worker/model/microbatch_input.h"
#include "worker/model/testing/gradients.h"
#include "worker/model/testing/small_model.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using testing_model::CheckEveryTensor;
using testing_model::EmptyGradientSink;
using testing_model::FullSpec;
using testing_model::MakeModel;
using testing_model::RandomBatch;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

TEST(Adapters, GradientsOfAdaptersAgreeWithFiniteDifferences) {
  for (const plan::ModelSpec& spec :
       {SmallSpec(), FullSpec(), testing_model::PostNormSpec(), testing_model::SandwichSpec()}) {
    CheckEveryTensor(testing_model::WithAdapters(spec));
    CheckEveryTensor(testing_model::WithAdapters(spec, /*all=*/false));
  }
}

PackedBatch DroppingBatch(const plan::ModelSpec& spec, const std::vector<int64_t>& lengths) {
  PackedBatch batch = RandomBatch(spec, lengths, 4);
  batch.dropout = {.probability = 0.25, .seed = 5, .step = 2, .samples = {}};
  for (size_t s = 0; s < lengths.size(); ++s) {
    batch.dropout->samples.push_back(static_cast<int64_t>(10 + s));
  }
  return batch;
}

TEST(Adapters, GradientsWithDropoutAgreeWithFiniteDifferences) {
  for (const plan::ModelSpec& spec :
       {SmallSpec(), FullSpec(), testing_model::PostNormSpec(), testing_model::SandwichSpec()}) {
    const plan::ModelSpec adapted = testing_model::WithAdapters(spec);
    CheckEveryTensor(adapted, DroppingBatch(adapted, {17, 1, 30}));
  }
}

// However its sample is packed.
TEST(Adapters, DropoutGoesWithTheSample) {
  const plan::ModelSpec spec = testing_model::WithAdapters(FullSpec());
  const auto model = MakeModel(spec);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 5);
  const auto loss_of = [&](const PackedBatch& batch) {
    return EvaluateLoss(*model, batch, weights)->loss_sum;
  };
  const PackedBatch both = DroppingBatch(spec, {40, 7});
  double alone = 0;
  for (const size_t s : {1, 0}) {
    const auto begin = static_cast<size_t>(both.cu_seqlens[s]);
    const auto count = static_cast<size_t>(both.cu_seqlens[s + 1]) - begin;
    PackedBatch batch;
    batch.AppendNextToken(std::span(both.tokens).subspan(begin, count));
    batch.dropout = {
        .probability = 0.25, .seed = 5, .step = 2, .samples = {both.dropout->samples[s]}};
    alone += loss_of(batch);
  }
  EXPECT_NEAR(loss_of(both), alone, 1e-5 * alone);
  PackedBatch other = both;
  other.dropout->step = 3;
  EXPECT_GT(std::abs(loss_of(other) - alone), 1e-3 * alone);
  PackedBatch none = both;
  none.dropout.reset();
  EXPECT_GT(std::abs(loss_of(none) - alone), 1e-3 * alone);
}

// Whatever is recomputed, and whether the gradient is written or added to.
TEST(Adapters, AdaptersHaveTheSameBitsWhateverIsRecomputed) {
  for (const plan::ModelSpec& base :
       {SmallSpec(), FullSpec(), testing_model::PostNormSpec(), testing_model::SandwichSpec()}) {
    const plan::ModelSpec spec = testing_model::WithAdapters(base);
    const auto model = MakeModel(spec, DType::kBF16);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kBF16, 5);
    for (const PackedBatch& batch : {RandomBatch(spec, {40, 7}, 6), DroppingBatch(spec, {40, 7})}) {
      MemoryGradientSink kept(model->units());
      ASSERT_TRUE(RunMicrobatch(*model, batch, 0.125, weights, kept).ok());
      for (const plan::Recompute recompute : {plan::Recompute::kLight, plan::Recompute::kFull}) {
        EmptyGradientSink remade(model->units());
        ASSERT_TRUE(RunMicrobatch(*model, batch, 0.125, weights, remade, recompute).ok());
        for (const plan::UnitSpec& unit : model->units()) {
          EXPECT_TRUE(std::ranges::equal(remade.gradient(unit.index), kept.gradient(unit.index)))
              << unit.name;
        }
      }
    }
  }
}

// Where B is zero, an adapter changes nothing.
TEST(Adapters, AnAdapterOfZeroLeavesTheLossAsItIs) {
  const plan::ModelSpec spec = testing_model::WithAdapters(FullSpec());
  const auto adapted = MakeModel(spec);
  const auto base = MakeModel(FullSpec());
  MemoryUnitSource weights = RandomWeights(adapted->units(), DType::kF32, 5);
  for (const plan::UnitSpec& unit : adapted->units()) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      if (tensor.role == plan::Role::kLoraB) {
        std::ranges::fill(
            weights.weights(unit.index)
                .subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.count())),
            0.0F);
      }
    }
  }
  MemoryUnitSource alone = RandomWeights(base->units(), DType::kF32, 5);
  const PackedBatch batch = RandomBatch(spec, {40, 7}, 6);
  EXPECT_EQ(EvaluateLoss(*adapted, batch, weights)->loss_sum,
            EvaluateLoss(*base, batch, alone)->loss_sum);
}

// What the first block makes of a stream of 64 and -64.
oracle::Doubles OutputOf(const plan::ModelSpec& spec, DType compute) {
  const auto model = MakeModel(spec, compute);
  MemoryUnitSource weights = RandomWeights(model->units(), compute, 5);
  const PackedBatch batch = RandomBatch(spec, std::vector<int64_t>(32, 16), 6);
  Workspace workspace(model->device(), model->ops().stream());
  MicrobatchInput microbatch = *MicrobatchInput::Create(batch, spec.vocabulary);
  EXPECT_TRUE(model->rotary().Reserve(microbatch.longest(), model->ops().stream()).ok());
  const BlockActivations a = *workspace.Fill([&](Carver& carver) {
    microbatch.Carve(carver);
    return BlockActivations::Carve(carver, spec, compute, microbatch.rows());
  });
  oracle::Tensor input(compute, microbatch.rows(), spec.hidden);
  oracle::Tensor output(compute, microbatch.rows(), spec.hidden);
  Random random(7);
  for (int64_t i = 0; i < microbatch.rows() * spec.hidden; ++i) {
    input.Set(i, random.Below(2) == 0 ? 64 : -64);
  }
  Ops& ops = model->ops();
  microbatch.Load(ops.stream());
  ops.Convert(input.view(), a.input);
  const HeldBlock block = *HeldBlock::Get(*model, weights, 1);
  BlockForward(ops, block.weights(*model), microbatch.sequences(model->rotary(), 1), a,
               output.view());
  EXPECT_TRUE(ops.Finish().ok());
  return output.doubles();
}

// What they add is less than half of the stream's last bit, and moves the mean all the same.
TEST(Adapters, WhatTheyAddIsNotRoundedAgainstTheStream) {
  for (const std::string module : {"o_proj", "down_proj"}) {
    const plan::ModelSpec spec = *plan::WithAdapters(SmallSpec(), {module}, 4, 0.2);
    const auto added = [&](DType compute) {
      oracle::Doubles sums = OutputOf(spec, compute);
      const oracle::Doubles base = OutputOf(SmallSpec(), compute);
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] -= base[i];
      }
      return sums;
    };
    const oracle::Doubles expected = added(DType::kF32);
    const oracle::Doubles rounded = added(DType::kBF16);
    double squares = 0;
    double product = 0;
    double largest = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      squares += expected[i] * expected[i];
      product += expected[i] * rounded[i];
      largest = std::max(largest, std::abs(expected[i]));
    }
    EXPECT_LT(std::sqrt(squares / static_cast<double>(expected.size())), 0.1) << module;
    EXPECT_NEAR(product / squares, 1, 0.15) << module << " of at most " << largest;
  }
}

}  // namespace
}  // namespace shoal::worker
