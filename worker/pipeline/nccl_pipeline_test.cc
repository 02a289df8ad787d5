// The transformer in pipelines of fake GPUs, with messages by the fake NCCL: has the bits of one
// worker, and of messages over the host, for every schedule, with and without offload.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/schedule_queues.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"
#include "worker/collectives/nccl/nccl_collectives.h"
#include "worker/model/testing/small_model.h"
#include "worker/ops/cuda/cuda_ops.h"
#include "worker/pipeline/testing/transformer_pipeline.h"

namespace shoal::worker {
namespace {

StepConfig MakeConfig(int microbatches) {
  StepConfig config{.spec = testing_model::SmallSpec(), .compute = DType::kF32};
  config.spec.layers = 6;
  config.batches = RandomBatches(config.spec, microbatches, 71, 3, {9});
  return config;
}

ComputeDevice CudaComputeDevice(int gpu) {
  ComputeDevice compute_device;
  compute_device.device = MakeCudaDevice({.gpu = gpu, .budget_bytes = int64_t{64} << 20}).value();
  compute_device.ops =
      MakeCudaOps(*compute_device.device, {.cublas_lt = false, .cudnn = false}).value();
  return compute_device;
}

void SetUpGpus(uint64_t seed, int gpus) {
  gpu::SetFakeGpus({.count = gpus, .seed = seed});
  SetFakeNccl({});
}

// Counts the pairs of stages that exchange messages.
int64_t CountPairs(const plan::ScheduleShape& shape) {
  int64_t ends = 0;
  for (int stage = 0; stage < shape.stages; ++stage) {
    ends += static_cast<int64_t>(plan::Neighbours(shape, stage).size());
  }
  return ends / 2;
}

void ExpectBits(const StepConfig& config, const plan::Schedule& schedule, bool offload,
                const StepOutcome& alone, Random& random) {
  SCOPED_TRACE(absl::StrCat(schedule.name, " of ", schedule.shape.stages, " stages",
                            offload ? " with offload" : ""));
  SetUpGpus(random.Next(), schedule.shape.stages);
  const auto ran =
      RunPipeline(config, schedule, plan::Recompute::kNone, offload, CudaComputeDevice, random,
                  [](const Device& device) { return OpenNccl(device).value(); });
  ASSERT_TRUE(ran.ok()) << ran.status();
  EXPECT_TRUE(ran->step == alone);
  EXPECT_EQ(CountNccl().messages,
            plan::CountSends(schedule) + 2 * CountPairs(schedule.shape));  // two to connect
  EXPECT_EQ(CountNccl().aborted, 0);
  EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
}

TEST(NcclPipeline, EveryScheduleHasTheBitsOfOneWorkerAndOfLinksOverTheHost) {
  constexpr int kMicrobatches = 4;
  const StepConfig config = MakeConfig(kMicrobatches);
  SetUpGpus(1, 2);
  const StepOutcome alone = RunAlone(config, CudaComputeDevice(0)).value();
  EXPECT_TRUE(alone.finite);
  Random random(72);
  const auto host = RunPipeline(config, plan::OneForwardOneBackward(2, kMicrobatches),
                                plan::Recompute::kNone, false, CudaComputeDevice, random);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_TRUE(host->step == alone);
  for (const plan::Schedule& schedule : SchedulesOfStages(kMicrobatches)) {
    for (const bool offload : {false, true}) {
      ExpectBits(config, schedule, offload, alone, random);
    }
  }
}

}  // namespace
}  // namespace shoal::worker
