// The table of a GPU against the CPU's, operator by operator.
#include "worker/ops/cuda/cuda_ops.h"

#include "gpu/testing/gpu.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::worker {
namespace {

class CudaOpsTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    if (!gpu::PrepareGpu(GetParam())) {
      GTEST_SKIP() << "no GPU";
    }
    device_ = MakeCudaDevice({.budget_bytes = int64_t{256} << 20}).value();
  }
  void ExpectAgreement(Ops& ops) {
    const std::vector<OpCheck> checks =
        CheckOps(*device_, ops, *cpu_, GetParam(), CheckScale::kSmall);
    EXPECT_GT(checks.size(), 150u);
    for (const OpCheck& check : checks) {
      EXPECT_TRUE(check.passed()) << check.name << ": " << check.error << " of " << check.bound
                                  << " " << check.wrong;
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Device> cpu_device_ = MakeCpuDevice();
  std::unique_ptr<Ops> cpu_ = MakeCpuOps(*cpu_device_, 2);
};
INSTANTIATE_TEST_SUITE_P(Seeds, CudaOpsTest, testing::Values(11, 12));

TEST_P(CudaOpsTest, EveryOperatorAgreesWithTheCpu) {
  const std::unique_ptr<Ops> ops = MakeCudaOps(*device_, {.cublas_lt = false, .cudnn = false}).value();
  ExpectAgreement(*ops);
}

}  // namespace
}  // namespace shoal::worker
