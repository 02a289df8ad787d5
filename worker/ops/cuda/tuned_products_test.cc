// When the table tunes products, over a fake cuBLASLt.
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/cuda/cuda_ops.h"
#include "worker/ops/cuda/matmul/testing/fake_cublas_lt.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::worker {
namespace {

class TunedProductsTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu::SetFakeGpus({});
    lt_ = cuda::ResetFake();
    cuda::Fake().fast_offer = 1;
    device_ = MakeCudaDevice({.budget_bytes = int64_t{256} << 20}).value();
  }
  void TearDown() override {
    ops_.reset();
    EXPECT_EQ(cuda::Fake().objects, 0);
  }
  void Make(CudaOpsOptions options) {
    options.cudnn = false;
    ops_ = MakeCudaOps(*device_, options, &lt_).value();
  }
  // Runs the same product `times` times.
  void Multiply(int64_t times) {
    const Buffer memory = device_->Allocate(4096).value();
    ops_->stream().Zero(memory.data(), memory.bytes());
    const Matrix a = Matrix::Dense(memory.data(), DType::kBF16, 16, 16);
    const Matrix c = Matrix::Dense(memory.data() + 2048, DType::kBF16, 16, 16);
    for (int64_t i = 0; i < times; ++i) {
      ops_->Matmul({.a = a, .b = a, .c = c});
    }
    EXPECT_TRUE(ops_->Finish().ok());
  }

  cuda::CublasLt lt_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
};

// The fastest algorithm may differ between processes, and the last bits with it.
TEST_F(TunedProductsTest, WhereTheSameBitsAreAskedForNothingIsMeasured) {
  Make({.deterministic = true, .tune_after = 1});
  Multiply(5);
  EXPECT_EQ(cuda::Fake().last_offer, 0);
  EXPECT_EQ(cuda::Fake().products, 5);
}

TEST_F(TunedProductsTest, ElseWhatComesOftenIs) {
  Make({.deterministic = false, .tune_after = 4});
  Multiply(3);
  EXPECT_EQ(cuda::Fake().last_offer, 0);
  Multiply(1);
  EXPECT_EQ(cuda::Fake().last_offer, 1);
  EXPECT_GT(cuda::Fake().products, 4);
}

// As on a real one, which is told to tune at once.
TEST_F(TunedProductsTest, TunedProductsAgreeWithTheCpu) {
  Make({.deterministic = false, .tune_after = 1});
  const std::unique_ptr<Device> cpu = MakeCpuDevice();
  const std::unique_ptr<Ops> oracle = MakeCpuOps(*cpu, 1);
  for (const OpCheck& check :
       CheckMatmuls(*device_, *ops_, *oracle, /*seed=*/5, CheckScale::kSmall)) {
    EXPECT_TRUE(check.passed()) << check.name << ": " << check.error << " " << check.wrong;
  }
  EXPECT_EQ(cuda::Fake().last_offer, 1);
}

}  // namespace
}  // namespace shoal::worker
