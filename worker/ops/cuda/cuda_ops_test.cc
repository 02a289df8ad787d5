// A GPU's operators against the CPU's, one by one.
#include "worker/ops/cuda/cuda_ops.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/base/bf16.h"
#include "core/base/random.h"
#include "core/gpu/testing/gpu.h"
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
  const std::unique_ptr<Ops> ops =
      MakeCudaOps(*device_, {.cublas_lt = false, .cudnn = false}).value();
  ExpectAgreement(*ops);
}

TEST_P(CudaOpsTest, SwiGluMadeAgainHasTheForwardsBits) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kColumns = 72;
  const std::unique_ptr<Ops> ops =
      MakeCudaOps(*device_, {.cublas_lt = false, .cudnn = false}).value();
  Random random(GetParam());
  std::vector<BFloat16> values(4 * kRows * kColumns);  // gate and up, and two outputs
  for (BFloat16& value : values) {
    value = BFloat16(static_cast<float>(3 * random.Normal()));
  }
  constexpr int64_t kBytes = kRows * kColumns * 2;
  const Buffer buffer = device_->Allocate(6 * kBytes).value();
  const auto at = [&](int64_t begin, int64_t columns) {
    return Matrix::Dense(buffer.data() + begin * kBytes, DType::kBF16, kRows, columns);
  };
  ops->stream().Copy(buffer.data(), values.data(), 4 * kBytes);
  ops->SwiGluForward(at(0, 2 * kColumns), at(2, kColumns));
  ops->SwiGluBackward(at(2, kColumns), at(0, 2 * kColumns), at(4, 2 * kColumns), at(3, kColumns));
  ops->stream().Copy(values.data(), buffer.data(), 4 * kBytes);
  ASSERT_TRUE(ops->Finish().ok());
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_TRUE(std::ranges::equal(bytes.subspan(2 * kBytes, kBytes), bytes.subspan(3 * kBytes)));
}

}  // namespace
}  // namespace shoal::worker
