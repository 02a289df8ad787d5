// Both kinds of products on the machine's own GPU; skipped without one, cuBLASLt's half also if the
// library is not found.
#include <iostream>

#include "core/gpu/testing/gpu.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/matmul/matmul.h"
#include "worker/ops/cuda/matmul/testing/products.h"

namespace shoal::worker::cuda {
namespace {

void Check(const CublasLt* lt, const MatmulsOptions& options) {
  absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice({.budget_bytes = 1 << 30});
  ASSERT_TRUE(device.ok()) << device.status();
  const std::unique_ptr<Stream> stream = (*device)->NewStream();
  auto matmuls = Matmuls::Create(**device, *stream, lt, options);
  ASSERT_TRUE(matmuls.ok()) << matmuls.status();
  Random random(23);
  const auto check = [&](const MatmulCase& c) {
    const auto product = [&](const MatmulArgs& args) {
      const absl::Status status = (*matmuls)->Run(args);
      ASSERT_TRUE(status.ok()) << status;
    };
    random = Random(static_cast<uint64_t>(c.m * 1000003 + c.n * 1009 + c.k));
    const auto first = ExpectProduct(c, random, NativeStream(*stream), product);
    random = Random(static_cast<uint64_t>(c.m * 1000003 + c.n * 1009 + c.k));
    EXPECT_EQ(ExpectProduct(c, random, NativeStream(*stream), product), first) << c.ToString();
  };
  // Shapes of models, which cuBLASLt must take; it may refuse any other.
  check({.m = 1000, .n = 768, .k = 768, .transpose_b = true, .output = DType::kBF16});
  check({.m = 1000, .n = 512, .k = 520, .output = DType::kBF16});
  check({.m = 256, .n = 128, .k = 5000, .transpose_a = true, .accumulate = true});
  const MatmulCounts of_models = (*matmuls)->counts();
  EXPECT_EQ(lt == nullptr ? of_models.by_cublas_lt : of_models.by_own_kernels, 0)
      << of_models.refused_shapes << " shapes refused";
  check({.m = 64, .n = 50257, .k = 64, .transpose_b = true});  // unaligned rows
  for (int round = 0; round < 60; ++round) {
    check(RandomCase(random, 400, round % 3 != 0));
  }
  const MatmulCounts counts = (*matmuls)->counts();
  std::cout << "products by cuBLASLt " << counts.by_cublas_lt << ", by our kernels "
            << counts.by_own_kernels << "; shapes that cuBLASLt refused " << counts.refused_shapes
            << std::endl;
}

class MatmulsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareGpu(1)) {
      GTEST_SKIP() << "no GPU that can be used";
    }
  }
};

TEST_F(MatmulsOnGpu, OwnKernelsAgreeWithTheOracle) { Check(nullptr, {}); }

TEST_F(MatmulsOnGpu, CublasLtAgreesWithTheOracle) {
  const auto lt = LoadCublasLt();
  if (!lt.ok()) {
    GTEST_SKIP() << lt.status();
  }
  Check(&*lt, {});
  Check(&*lt, {.tune_after = 1});
}

}  // namespace
}  // namespace shoal::worker::cuda
