// The machine's GPU, with cuBLASLt if found, against the CPU at shapes of training.
#include "core/gpu/testing/gpu.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/cuda/cuda_ops.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::worker {
namespace {

TEST(CudaOpsOnTheMachine, EveryOperatorAgreesWithTheCpuAtShapesOfTraining) {
  if (!gpu::PrepareGpu(0)) {
    GTEST_SKIP() << "no GPU";
  }
  const std::unique_ptr<Device> device = MakeCudaDevice({.budget_bytes = int64_t{4} << 30}).value();
  const std::unique_ptr<Ops> ops = MakeCudaOps(*device).value();
  const std::unique_ptr<Device> cpu_device = MakeCpuDevice();
  const std::unique_ptr<Ops> cpu = MakeCpuOps(*cpu_device, 0);
  for (const OpCheck& check : CheckOps(*device, *ops, *cpu, 31, CheckScale::kLarge)) {
    EXPECT_TRUE(check.passed()) << check.name << ": " << check.error << " of " << check.bound << " "
                                << check.wrong;
  }
}

}  // namespace
}  // namespace shoal::worker
