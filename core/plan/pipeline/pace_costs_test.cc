#include "core/plan/pipeline/pace_costs.h"

#include <array>
#include <limits>
#include <numeric>

#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/plan/memory/activation_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

PipelinePace Pace() {
  return {.forward_flops = 1e12,
          .backward_input_flops = 2e12,
          .backward_weights_flops = 4e12,
          .offload_bytes_per_second = 1e9,
          .reload_bytes_per_second = 2e9,
          .message_bytes_per_second = 1e10,
          .message_latency_seconds = 1e-3};
}

TEST(PipelineCosts, AWholeModelTakesItsFlops) {
  const ModelSpec spec = *NamedShape("25m");
  PipelinePace pace = Pace();
  pace.backward_input_flops = pace.backward_weights_flops = pace.forward_flops;
  const MicrobatchSize size = SizeOfSequences(std::array<int64_t, 1>{1024});
  for (const int chunks : {1, 2, 5}) {
    const ScheduleShape shape{.stages = 2, .chunks = chunks, .placement = Placement::kLooped};
    const std::array sizes = {size};
    const auto unit_costs = UnitCosts({.spec = spec}, sizes, pace);
    const auto split = SplitLayers(unit_costs, 2, chunks, Placement::kLooped);
    if (!split.ok()) {
      EXPECT_GT(2 * chunks, spec.layers + 2);
      continue;
    }
    const ScheduleCosts costs = PipelineCosts({.spec = spec}, shape, *split, sizes, pace);
    double seconds = 0;
    for (int stage = 0; stage < 2; ++stage) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        seconds += costs.Of(stage, chunk, 0).Compute();
      }
    }
    const double flops = 3 * ForwardFlops(spec, 1024);
    EXPECT_NEAR(seconds, flops / 1e12, 1e-9 * seconds);
    EXPECT_NEAR(std::accumulate(unit_costs.begin(), unit_costs.end(), 0.0), seconds,
                1e-9 * seconds);
  }
}

TEST(PipelineCosts, EachPartAtItsOwnRate) {
  const ModelSpec spec = *NamedShape("25m");
  const auto layers = static_cast<int>(spec.layers);
  const ScheduleShape shape{.stages = 1, .chunks = 3};
  const std::array<UnitRange, 3> split = {{{0, 1}, {1, layers}, {layers + 1, 1}}};
  // Two sequences in one microbatch: rows are padded together, squares add up.
  const std::array sizes = {SizeOfSequences(std::array<int64_t, 2>{300, 700})};
  EXPECT_EQ(sizes[0], (MicrobatchSize{1000, 90000 + 490000}));
  const double matrices = layers * BlockMatrixFlops(spec, 1024);
  const double attention = layers * BlockAttentionFlops(spec, 580000);
  const auto costs_of = [&](Recompute recompute) {
    return PipelineCosts({.spec = spec, .recompute = recompute}, shape, split, sizes, Pace());
  };
  const ScheduleCosts costs = costs_of(Recompute::kNone);
  const ChunkCost& blocks = costs.Of(0, 1, 0);
  EXPECT_NEAR(blocks.forward, (matrices + attention) / 1e12, 1e-12);
  EXPECT_NEAR(blocks.backward_input, (matrices + 2 * attention) / 2e12, 1e-12);
  EXPECT_NEAR(blocks.backward_weights, matrices / 4e12, 1e-12);
  const ChunkBytes bytes = PlanChunkBytes(spec, DType::kF32, split[1], Recompute::kNone, 1000);
  EXPECT_EQ(blocks.activation_bytes, bytes.activations);
  EXPECT_EQ(blocks.gradient_bytes, bytes.gradients);
  EXPECT_NEAR(blocks.offload, static_cast<double>(bytes.activations) / 1e9, 1e-12);
  EXPECT_NEAR(blocks.reload, static_cast<double>(bytes.activations) / 2e9, 1e-12);
  EXPECT_NEAR(blocks.send_gradient, 1e-3 + static_cast<double>(bytes.message) / 1e10, 1e-12);
  const double head = HeadFlops(spec, 1024);
  EXPECT_EQ(costs.Of(0, 2, 0).forward, 0);
  EXPECT_NEAR(costs.Of(0, 2, 0).backward_input, head * (1 + 0.5 + 0.25) / 1e12, 1e-12);
  EXPECT_EQ(costs.Of(0, 0, 0).Compute(), 0);
  EXPECT_EQ(costs.Of(0, 0, 0).activation_bytes, 0);
  // Full recompute runs the blocks' forward again.
  const ChunkCost again = costs_of(Recompute::kFull).Of(0, 1, 0);
  EXPECT_NEAR(again.backward_input, blocks.backward_input + blocks.forward, 1e-12);
  EXPECT_EQ(again.forward, blocks.forward);
  EXPECT_EQ(costs_of(Recompute::kLight).Of(0, 1, 0).backward_input, blocks.backward_input);
}

// Two norms are read and written again; SwiGLU's backward writes one more.
// What is left of W is small, so that schedules which put it off gain little.
TEST(PipelineCosts, AdaptersAreWithoutTheGradientOfTheModelsMatrices) {
  const ModelSpec model = *NamedShape("25m");
  const ModelSpec spec = *WithAdapters(model, {"all-linear"}, /*rank=*/8, 1);
  const ScheduleShape shape{.stages = 2, .chunks = 1};
  const std::array<UnitRange, 2> split = {{{0, 3}, {3, static_cast<int>(spec.layers) - 1}}};
  const std::array sizes = {SizeOfSequences(std::array<int64_t, 1>{1024})};
  const ChunkCost full = PipelineCosts({.spec = model}, shape, split, sizes, Pace()).Of(0, 0, 0);
  const ChunkCost adapted = PipelineCosts({.spec = spec}, shape, split, sizes, Pace()).Of(0, 0, 0);
  EXPECT_GT(adapted.backward_weights, 0);
  EXPECT_LT(adapted.backward_weights, 0.1 * full.backward_weights);
  EXPECT_DOUBLE_EQ(adapted.backward_input, full.backward_input);
}

TEST(PipelineCosts, LightRecomputeTakesTheBytesThatItAdds) {
  const ModelSpec spec = *NamedShape("25m");
  const std::array<UnitRange, 1> split = {{{1, 1}}};
  const std::array sizes = {SizeOfSequences(std::array<int64_t, 1>{1000})};
  PipelinePace pace = Pace();
  pace.elementwise_bytes_per_second = 1e9;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto seconds = [&](Recompute recompute) {
      return PipelineCosts({.spec = spec, .compute = compute, .recompute = recompute},
                           {.stages = 1, .chunks = 1}, split, sizes, pace)
          .Of(0, 0, 0)
          .backward_input;
    };
    const int64_t bytes = 1024 * SizeOf(compute) * (4 * spec.hidden + spec.mlp().intermediate);
    EXPECT_NEAR(seconds(Recompute::kLight) - seconds(Recompute::kNone),
                static_cast<double>(bytes) / 1e9, 1e-9)
        << Name(compute);
  }
}

TEST(PipelineCosts, AttentionAndTheHeadMayHaveRatesOfTheirOwn) {
  const ModelSpec spec = *NamedShape("25m");
  const auto layers = static_cast<int>(spec.layers);
  const std::array<UnitRange, 2> split = {{{0, 1 + layers}, {layers + 1, 1}}};
  const std::array sizes = {SizeOfSequences(std::array<int64_t, 1>{1024})};
  PipelinePace pace = Pace();
  pace.attention_forward_flops = 1e11;
  pace.attention_backward_flops = 5e10;
  pace.head_flops = 1e10;
  const ScheduleCosts costs =
      PipelineCosts({.spec = spec}, {.stages = 1, .chunks = 2}, split, sizes, pace);
  const double matrices = layers * BlockMatrixFlops(spec, 1024);
  const double attention = layers * BlockAttentionFlops(spec, 1024.0 * 1024);
  EXPECT_NEAR(costs.Of(0, 0, 0).forward, matrices / 1e12 + attention / 1e11, 1e-12);
  EXPECT_NEAR(costs.Of(0, 0, 0).backward_input, matrices / 2e12 + 2 * attention / 5e10, 1e-12);
  EXPECT_NEAR(costs.Of(0, 0, 0).backward_weights, matrices / 4e12, 1e-12);
  EXPECT_NEAR(costs.Of(0, 1, 0).backward_input, 3 * HeadFlops(spec, 1024) / 1e10, 1e-12);
}

TEST(PipelinePace, RatesThatMakeNoSenseAreRefused) {
  EXPECT_TRUE(Validate(Pace()).ok());
  PipelinePace pace = Pace();
  pace.backward_weights_flops = 0;
  EXPECT_THAT(Describe(Validate(pace)), testing::HasSubstr("backward weights FLOP/s is 0"));
  pace = Pace();
  pace.reload_bytes_per_second = -1;
  EXPECT_FALSE(Validate(pace).ok());
  pace.reload_bytes_per_second = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(Validate(pace).ok());
}

}  // namespace
}  // namespace shoal::plan
