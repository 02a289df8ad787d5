// The transformer on a GPU, alone and in pipelines: near the CPU, and with the same bits in every
// order of streams, schedule, offload and recompute. The GPU is fake or real, as linked.
#include <cmath>
#include <vector>

#include "core/gpu/testing/gpu.h"
#include "core/plan/schedule/builders/builders.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/model/testing/small_model.h"
#include "worker/ops/cuda/cuda_ops.h"
#include "worker/pipeline/testing/transformer_pipeline.h"

namespace shoal::worker {
namespace {

constexpr uint64_t kSeed = 21;

StepConfig MakeConfig(DType compute, int layers, int microbatches) {
  StepConfig config{.compute = compute};
  plan::ModelSpec& spec = config.spec;
  spec = {.family = "llama",
          .vocabulary = 128,
          .hidden = 64,
          .layers = layers,
          .max_positions = 64,
          .tied_embeddings = true,
          .kinds = {{.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16, .qkv_bias = true},
                     .mlp = {.intermediate = 96}}}};
  config.batches = RandomBatches(spec, microbatches, 61, 5, {40, 24});
  return config;
}

ComputeDevice CudaComputeDevice() {
  ComputeDevice compute_device;
  compute_device.device = MakeCudaDevice({.budget_bytes = int64_t{256} << 20}).value();
  compute_device.ops =
      MakeCudaOps(*compute_device.device, {.cublas_lt = false, .cudnn = false}).value();
  return compute_device;
}

// Returns the norm of the difference over that of `expected`.
double RelativeError(const std::vector<int64_t>& values, const std::vector<int64_t>& expected) {
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double a = std::ldexp(static_cast<double>(values[i]), -kGradientBits);
    const double b = std::ldexp(static_cast<double>(expected[i]), -kGradientBits);
    difference += (a - b) * (a - b);
    length += b * b;
  }
  return std::sqrt(difference / length);
}

class CudaPipelineTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!gpu::PrepareGpu(kSeed)) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Types, CudaPipelineTest, testing::Values(DType::kF32, DType::kBF16));

TEST_P(CudaPipelineTest, OneWorkerIsNearTheCpuAndHasTheSameBitsInEveryOrder) {
  const StepConfig config = MakeConfig(GetParam(), /*layers=*/2, /*microbatches=*/2);
  const double bound = GetParam() == DType::kF32 ? 1e-4 : 0.04;
  const StepOutcome cpu = RunAlone(config, MakeCpuComputeDevice(/*threads=*/1)).value();
  const StepOutcome gpu = RunAlone(config, CudaComputeDevice()).value();
  EXPECT_TRUE(gpu.finite);
  for (size_t m = 0; m < cpu.losses.size(); ++m) {
    EXPECT_NEAR(gpu.losses[m], cpu.losses[m], bound * cpu.losses[m]);
  }
  for (size_t unit = 0; unit < cpu.gradients.size(); ++unit) {
    EXPECT_LT(RelativeError(gpu.gradients[unit], cpu.gradients[unit]), bound) << "unit " << unit;
  }
  for (uint64_t seed = kSeed + 1; seed < kSeed + 4; ++seed) {
    ASSERT_TRUE(gpu::PrepareGpu(seed));
    EXPECT_TRUE(RunAlone(config, CudaComputeDevice()).value() == gpu);
  }
}

TEST_P(CudaPipelineTest, PipelinesHaveTheBitsOfOneWorker) {
  const StepConfig config = MakeConfig(GetParam(), /*layers=*/2, /*microbatches=*/3);
  const StepOutcome alone = RunAlone(config, CudaComputeDevice()).value();
  Random random(62);
  struct Variant {
    plan::Schedule schedule;
    plan::Recompute recompute = plan::Recompute::kNone;
    bool offload = false;
  };
  for (const Variant& variant :
       {Variant{plan::OneForwardOneBackward(2, 3), plan::Recompute::kLight, false},
        Variant{plan::OneForwardOneBackward(2, 3), plan::Recompute::kFull, true},
        Variant{plan::UniformPipe(2, 2, 3), plan::Recompute::kLight, true},
        Variant{plan::ZeroBubbleH1(2, 3), plan::Recompute::kNone, true}}) {
    SCOPED_TRACE(variant.schedule.name);
    ASSERT_TRUE(gpu::PrepareGpu(random.Next()));
    const auto ran = RunPipeline(
        config, variant.schedule, variant.recompute, variant.offload,
        [](int) { return CudaComputeDevice(); }, random);
    ASSERT_TRUE(ran.ok()) << ran.status();
    EXPECT_TRUE(ran->step == alone);
    for (const StageReport& report : ran->reports) {
      EXPECT_GT(report.compute_seconds, 0);
    }
  }
}

}  // namespace
}  // namespace shoal::worker
