// FLOPs, memory, floors and medians as computed from cases and kernels.
#include <map>

#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/timing.h"
#include "bench/gpu_check/base/utilisation.h"
#include "bench/gpu_check/parts/floors.h"
#include "bench/gpu_check/parts/resident_training.h"
#include "bench/gpu_check/parts/whole_model.h"
#include "bench/gpu_check/report/bars.h"
#include "bench/gpu_check/shapes_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/testing/small_model.h"

namespace shoal::bench {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(Utilisation, CountsMatricesThreeTimesAndAttentionAsHalf) {
  // 2 layers, 4 heads of 8, 2 kv heads, 53 tokens.
  const plan::ModelSpec spec = worker::testing_model::SmallSpec();
  const double block = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 40;
  const double matrices = 2.0 * 10 * (2 * block + 53 * 32);
  const double attention = 2 * (4.0 * 10 * 10 * 32) / 2;
  EXPECT_DOUBLE_EQ(TrainingFlops(spec, 10), 3 * (matrices + attention));
  EXPECT_DOUBLE_EQ(TrainingFlops(spec, 20, 2), 6 * (matrices + attention));
  EXPECT_DOUBLE_EQ(Utilisation(989e12, 2.0), 0.5);
}

TEST(Utilisation, ShapesHaveTheParametersThatTheirNamesSay) {
  const json shapes = ShapesJson(PartSizes());
  EXPECT_EQ(shapes["cases"].size(), PartSizes().train.size());
  EXPECT_GE(shapes["attention"].size(), 4u);
  const std::map<std::string, double> parameters = {
      {"124m, 4096 tokens", 124e6}, {"1.3b, 4096 tokens", 1.35e9}, {"7b, 4096 tokens", 7.6e9}};
  size_t found = 0;
  for (const json& c : shapes["cases"]) {
    if (const auto wanted = parameters.find(c["case"]); wanted != parameters.end()) {
      EXPECT_NEAR(c["shape"]["parameters"].get<double>(), wanted->second, 0.05 * wanted->second);
      ++found;
    }
  }
  EXPECT_EQ(found, parameters.size());
}

TEST(Bars, EachFloorIsThatOfACase) {
  for (const TrainFloor& floor : kTrainFloors) {
    EXPECT_TRUE(std::ranges::any_of(PartSizes().train, [&](const TrainCase& c) {
      return c.Name() == floor.name;
    })) << floor.name;
  }
}

TEST(PlanTraining, TakesWhatTheMemoryHasRoomFor) {
  const TrainCase c{"7b", 4096};
  const plan::ModelSpec spec = *c.Spec();
  const TrainPlan whole = *PlanTraining(c, spec, true, 0);
  EXPECT_EQ(whole.recompute, plan::Recompute::kNone);
  EXPECT_FALSE(whole.shared_state);
  // An H200's memory has no room for another 12 bytes per parameter.
  const TrainPlan shared = *PlanTraining(c, spec, true, int64_t{139} << 30);
  EXPECT_EQ(shared.recompute, plan::Recompute::kNone);
  EXPECT_TRUE(shared.shared_state);
  EXPECT_LT(shared.bytes, whole.bytes);
  const TrainCase longer{"7b", 65536};
  const TrainPlan again = *PlanTraining(longer, spec, true, int64_t{139} << 30);
  EXPECT_EQ(again.recompute, plan::Recompute::kFull);
  const auto none = PlanTraining(longer, spec, true, int64_t{20} << 30);
  EXPECT_TRUE(absl::IsResourceExhausted(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("does not fit: needs"));
}

TEST(PlanTraining, EveryCaseFitsAnH200) {
  for (const TrainCase& c : PartSizes().train) {
    const auto plan = PlanTraining(c, *c.Spec(), true, int64_t{138} << 30);
    ASSERT_TRUE(plan.ok()) << c.Name() << ": " << plan.status().message();
    EXPECT_EQ(plan->recompute, c.recompute) << c.Name();
  }
}

TEST(Floors, AreTheLongerOfBytesAndOperations) {
  const Ceilings ceilings{.copy_bytes_per_second = 100, .matrix_flops_per_second = 1000};
  const Floor memory = FloorOf({.bytes = 500, .flops = 1000}, ceilings);
  EXPECT_TRUE(memory.memory_bound);
  EXPECT_DOUBLE_EQ(memory.seconds, 5);
  const Floor matrix = FloorOf({.bytes = 500, .flops = 8000}, ceilings);
  EXPECT_FALSE(matrix.memory_bound);
  EXPECT_DOUBLE_EQ(matrix.seconds, 8);
}

TEST(Floors, CountEachInputAndOutputOnce) {
  const Cost product = MatmulCost(2, 3, 5, false);
  EXPECT_DOUBLE_EQ(product.bytes, 2 * (10 + 15 + 6));
  EXPECT_DOUBLE_EQ(product.flops, 60);
  EXPECT_DOUBLE_EQ(MatmulCost(2, 3, 5, true).bytes, 2 * (10 + 15) + 8 * 6);
  EXPECT_DOUBLE_EQ(ElementwiseCost(7, 2, 1).bytes, 42);
  const worker::AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8};
  // q of 32, k and v of 16 each, out of 32, one float per head.
  EXPECT_DOUBLE_EQ(AttentionForwardCost(shape, 10, 100).bytes, 10 * (2 * (64 + 32) + 16));
  EXPECT_DOUBLE_EQ(AttentionForwardCost(shape, 10, 100).flops, 2 * 100 * 32);
  EXPECT_DOUBLE_EQ(AttentionBackwardCost(shape, 10, 100).bytes, 10 * (4 * (64 + 32) + 16));
  EXPECT_DOUBLE_EQ(AttentionBackwardCost(shape, 10, 100).flops, 5 * 100 * 32);
}

TEST(Timing, MedianIsTheMiddle) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

TEST(Timing, CallsAreNumberedAndFailuresComeBack) {
  worker::ComputeDevice compute_device = worker::MakeCpuComputeDevice(1);
  int64_t next = 0;
  const auto seconds = MedianSeconds(*compute_device.ops, 0, [&](int64_t number) {
    EXPECT_EQ(number, next);
    ++next;
  });
  ASSERT_TRUE(seconds.ok());
  EXPECT_GE(*seconds, 0);
  EXPECT_GT(next, 8);  // two warm-up batches
}

}  // namespace
}  // namespace shoal::bench
