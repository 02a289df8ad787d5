// Which product runs where, over a fake cuBLASLt on the fake GPU.
#include "worker/ops/cuda/matmul/matmul.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/gpu/fake_cuda/hung_work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/matmul/testing/fake_cublas_lt.h"
#include "worker/ops/cuda/matmul/testing/products.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kScratch = 1 << 20;

class MatmulsTest : public testing::Test {
 protected:
  void SetUp() override {
    SetFakeGpus({});
    lt_ = ResetFake();
    MakeDevice(64 << 20);
  }
  void TearDown() override {
    matmuls_.reset();
    EXPECT_EQ(Fake().objects, 0);
  }

  void MakeDevice(int64_t budget_bytes) {
    stream_.reset();
    absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice({.budget_bytes = budget_bytes});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->NewStream();
  }
  void Make(const CublasLt* lt, MatmulsOptions options = {}) {
    options.scratch_bytes = kScratch;
    auto matmuls = Matmuls::Create(*device_, *stream_, lt, options);
    ASSERT_TRUE(matmuls.ok()) << matmuls.status();
    matmuls_ = *std::move(matmuls);
  }
  std::vector<std::byte> Check(const MatmulCase& c) {
    return ExpectProduct(c, random_, NativeStream(*stream_), [&](const MatmulArgs& args) {
      const absl::Status status = matmuls_->Run(args);
      ASSERT_TRUE(status.ok()) << status;
    });
  }

  Random random_{17};
  CublasLt lt_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Matmuls> matmuls_;
};

TEST_F(MatmulsTest, TellsCublasLtEveryLayoutRight) {
  Make(&lt_);
  for (int bits = 0; bits < 16; ++bits) {
    MatmulCase c = {.m = 13, .n = 21, .k = 34, .a_gap = 3, .b_gap = 2, .c_gap = 1, .offset = 1};
    c.transpose_a = (bits & 1) != 0;
    c.transpose_b = (bits & 2) != 0;
    c.accumulate = (bits & 4) != 0;
    c.input = (bits & 8) != 0 ? DType::kF32 : DType::kBF16;
    Check(c);
    c.a_gap = c.b_gap = c.c_gap = c.offset = 0;
    c.output = c.accumulate ? DType::kF32 : c.input;
    c.addend = !c.accumulate;
    Check(c);
    c.addend_gap = 5;
    Check(c);
  }
  EXPECT_EQ(matmuls_->counts().by_cublas_lt, 48);
  EXPECT_EQ(matmuls_->counts().by_own_kernels, 0);
  EXPECT_EQ(Fake().last_compute_type, CUBLAS_COMPUTE_32F);
}

TEST_F(MatmulsTest, AnyShapeByEitherWay) {
  for (const CublasLt* lt :
       {static_cast<const CublasLt*>(&lt_), static_cast<const CublasLt*>(nullptr)}) {
    Make(lt);
    for (int round = 0; round < 30; ++round) {
      Check(RandomCase(random_, 100, round % 2 == 0));
    }
    EXPECT_EQ(lt == nullptr ? matmuls_->counts().by_own_kernels : matmuls_->counts().by_cublas_lt,
              30);
  }
}

TEST_F(MatmulsTest, AsksTheHeuristicOnceAShape) {
  Make(&lt_);
  const MatmulCase one = {.m = 16, .n = 24, .k = 32};
  MatmulCase other = one;
  other.accumulate = true;
  MatmulCase third = one;
  third.addend = true;
  for (int round = 0; round < 3; ++round) {
    Check(one);
    Check(other);
    Check(third);
  }
  EXPECT_EQ(matmuls_->counts().heuristics, 2) << "it is not told whether C is added to";
  EXPECT_EQ(Fake().heuristics, 2);
  EXPECT_EQ(Fake().products, 9);
  EXPECT_EQ(Fake().last_offer, 0);  // the first that it does not refuse
}

TEST_F(MatmulsTest, AShapeThatLiesElsewhereIsAsAligned) {
  Make(&lt_);
  Buffer holder = *device_->Allocate(4096);
  for (const int64_t offset : {0, 64, 192, 1024}) {
    const ConstMatrix a = ConstMatrix::Dense(holder.data() + offset, DType::kF32, 4, 4);
    const Matrix c = Matrix::Dense(holder.data() + 2048 + offset, DType::kF32, 4, 4);
    ASSERT_TRUE(matmuls_->Run({.a = a, .b = a, .c = c}).ok());
  }
  EXPECT_EQ(Fake().heuristics, 1);
  const ConstMatrix off = ConstMatrix::Dense(holder.data() + 4, DType::kF32, 4, 4);
  const Matrix c = Matrix::Dense(holder.data() + 2048, DType::kF32, 4, 4);
  ASSERT_TRUE(matmuls_->Run({.a = off, .b = off, .c = c}).ok());
  EXPECT_EQ(Fake().heuristics, 2);
  ASSERT_TRUE(stream_->Synchronize().ok());
}

TEST_F(MatmulsTest, TheTableStaysBoundedAndGoesOnWorking) {
  Make(&lt_, {.table_shapes = 4});
  for (int round = 0; round < 2; ++round) {
    for (int64_t m = 1; m <= 8; ++m) {
      Check({.m = m, .n = 8, .k = 8});
    }
  }
  EXPECT_EQ(matmuls_->counts().heuristics, 16);  // forgotten and asked again
  EXPECT_EQ(Fake().objects, 1 + 4 * 4);          // the handle; a description and three layouts
  Check({.m = 5, .n = 8, .k = 8});               // among the last four
  EXPECT_EQ(matmuls_->counts().heuristics, 16);
}

TEST_F(MatmulsTest, Fp32IsFp32UnlessAskedOtherwise) {
  Make(&lt_, {.tf32 = true});
  Check({.m = 8, .n = 8, .k = 8, .input = DType::kF32});
  EXPECT_EQ(Fake().last_compute_type, CUBLAS_COMPUTE_32F_FAST_TF32);
  Check({.m = 8, .n = 8, .k = 8, .input = DType::kBF16});
  EXPECT_EQ(Fake().last_compute_type, CUBLAS_COMPUTE_32F);
}

TEST_F(MatmulsTest, TuningKeepsTheFastestAndAddsToCOnce) {
  Fake().fast_offer = 1;
  Make(&lt_, {.tune_after = 1, .table_shapes = 1});
  const MatmulCase written = {.m = 16, .n = 24, .k = 32, .c_gap = 4};
  MatmulCase added = written;
  added.accumulate = true;
  const MatmulCase plain = {.m = 16, .n = 24, .k = 32, .addend = true, .output = DType::kBF16};
  Check(added);
  EXPECT_EQ(Fake().last_offer, 0);
  EXPECT_EQ(Fake().products, 1) << "what is added up is not run again and again";
  Check(written);
  EXPECT_EQ(Fake().last_offer, 1);
  EXPECT_EQ(Fake().products, 1 + 3 * 4 + 1);
  Check(added);
  EXPECT_EQ(Fake().last_offer, 1) << "the choice serves both";
  Check(plain);
  EXPECT_EQ(Fake().last_offer, 1);
  EXPECT_EQ(Fake().products, 2 + 2 * (3 * 4 + 1));
  // The table has dropped it; the choice stays, whatever would be faster now.
  Fake().fast_offer = 0;
  Check(written);
  Check(added);
  EXPECT_EQ(Fake().last_offer, 1);
  EXPECT_EQ(Fake().products, 2 + 2 * (3 * 4 + 1) + 2);
}

TEST_F(MatmulsTest, TunesWhatComesOftenAlone) {
  Fake().fast_offer = 1;
  Make(&lt_, {.tune_after = 3});
  const MatmulCase written = {.m = 16, .n = 24, .k = 32};
  MatmulCase added = written;
  added.accumulate = true;
  const MatmulCase seldom = {.m = 17, .n = 24, .k = 32};
  const std::pair<MatmulCase, int64_t> uses[] = {
      {written, 0}, {added, 0}, {added, 0}, {written, 1}, {added, 1}};
  for (const auto& [product, offer] : uses) {
    Check(product);
    EXPECT_EQ(Fake().last_offer, offer);
  }
  EXPECT_EQ(Fake().products, 5 + 3 * 4);
  Check(seldom);
  Check(seldom);
  EXPECT_EQ(Fake().last_offer, 0);
  EXPECT_EQ(matmuls_->counts().by_cublas_lt, 7);
}

TEST_F(MatmulsTest, TuningAsksTheHeuristicOnceMoreAndNoMore) {
  Fake().offers = 1;
  Make(&lt_, {.tune_after = 2});
  for (int use = 0; use < 5; ++use) {
    Check({.m = 16, .n = 24, .k = 32});
  }
  EXPECT_EQ(Fake().heuristics, 2);
  EXPECT_EQ(Fake().products, 5) << "there is nothing to choose from";
}

TEST_F(MatmulsTest, WhereTuningFailsWhatServedGoesOn) {
  Make(&lt_, {.tune_after = 2});
  const MatmulCase product = {.m = 16, .n = 24, .k = 32};
  Check(product);
  Fake().heuristic_status = CUBLAS_STATUS_NOT_SUPPORTED;
  Check(product);
  Check(product);
  EXPECT_EQ(matmuls_->counts().by_cublas_lt, 3);
}

TEST_F(MatmulsTest, TuningTakesNoMemory) {
  Fake().fast_offer = 1;
  MakeDevice(kScratch + 256);  // only the scratch fits
  Make(&lt_, {.tune_after = 1});
  Check({.m = 16, .n = 24, .k = 32});
  EXPECT_EQ(Fake().last_offer, 1);
  EXPECT_EQ(device_->peak_bytes(), kScratch + 256);
}

// As if the stream waited for another worker's: the first offer serves, and nobody waits forever.
TEST_F(MatmulsTest, TuningGivesUpWhereTheStreamDoesNotGetOn) {
  Fake().fast_offer = 1;
  Make(&lt_, {.tune_after = 1, .tune_timeout = absl::Milliseconds(30)});
  const Buffer holder = *device_->Allocate(4096);
  stream_->Zero(holder.data(), 4096);
  const Matrix a = Matrix::Dense(holder.data(), DType::kBF16, 16, 16);
  const Matrix c = Matrix::Dense(holder.data() + 2048, DType::kBF16, 16, 16);
  {
    const HungWork hung(NativeStream(*stream_));
    EXPECT_TRUE(matmuls_->Run({.a = a, .b = a, .c = c}).ok());
    EXPECT_TRUE(matmuls_->Run({.a = a, .b = a, .c = c}).ok());
  }
  EXPECT_EQ(Fake().last_offer, 0);
  EXPECT_EQ(Fake().products, 4 + 2) << "one offer's, and the two that were asked for";
  EXPECT_TRUE(stream_->Synchronize().ok());
}

TEST_F(MatmulsTest, WhatTheHeuristicRefusesRunsByOwnKernels) {
  std::vector<std::string> refused;
  Make(&lt_, {.refused = [&](std::string_view product) { refused.emplace_back(product); }});
  const MatmulCase c = {.m = 16, .n = 24, .k = 32};
  Fake().heuristic_status = CUBLAS_STATUS_NOT_SUPPORTED;
  Check(c);
  Fake().heuristic_status = CUBLAS_STATUS_SUCCESS;
  Check(c);  // not asked again
  Fake().offers = 0;
  Check({.m = 17, .n = 24, .k = 32});
  EXPECT_EQ(Fake().heuristics, 2);
  EXPECT_EQ(Fake().products, 0);
  EXPECT_EQ(matmuls_->counts().refused_shapes, 2);
  EXPECT_EQ(matmuls_->counts().by_own_kernels, 3);
  ASSERT_EQ(refused.size(), 3u) << "each product";
  EXPECT_THAT(refused[0], testing::HasSubstr("C[16, 24] of BF16 over k = 32"));
  EXPECT_EQ(refused[1], refused[0]);
  EXPECT_THAT(refused[2], testing::HasSubstr("C[17, 24]"));
}

TEST_F(MatmulsTest, WhatFailsWhenRunRunsByOwnKernelsFromThenOn) {
  Make(&lt_);
  const MatmulCase c = {.m = 16, .n = 24, .k = 32, .accumulate = true};
  Check(c);
  Fake().matmul_status = CUBLAS_STATUS_NOT_SUPPORTED;
  Check(c);
  Fake().matmul_status = CUBLAS_STATUS_SUCCESS;
  Check(c);
  EXPECT_EQ(Fake().products, 1);
  EXPECT_EQ(matmuls_->counts().refused_shapes, 1);
  EXPECT_EQ(matmuls_->counts().by_own_kernels, 2);
}

TEST_F(MatmulsTest, WhatMayPassIsTriedAgainAFewTimes) {
  Make(&lt_);
  const MatmulCase passes = {.m = 16, .n = 24, .k = 32};
  Fake().matmul_status = CUBLAS_STATUS_ALLOC_FAILED;
  Check(passes);
  Check(passes);
  Fake().matmul_status = CUBLAS_STATUS_SUCCESS;
  Check(passes);
  Check(passes);
  EXPECT_EQ(matmuls_->counts().by_cublas_lt, 2);
  const MatmulCase stays = {.m = 17, .n = 24, .k = 32};
  Fake().heuristic_status = CUBLAS_STATUS_INTERNAL_ERROR;
  const int64_t before = Fake().heuristics;
  for (int i = 0; i < 6; ++i) {
    Check(stays);
  }
  EXPECT_EQ(Fake().heuristics - before, 3);
  EXPECT_EQ(matmuls_->counts().refused_shapes, 2);
}

TEST_F(MatmulsTest, ALibraryThatDoesNotStartIsDoneWithout) {
  Fake().create_status = CUBLAS_STATUS_NOT_INITIALIZED;
  Make(&lt_);
  Check({.m = 16, .n = 24, .k = 32});
  EXPECT_EQ(matmuls_->counts().by_own_kernels, 1);
}

TEST_F(MatmulsTest, RefusalsAreOneLineThatNamesTheProduct) {
  Buffer workspace = *device_->Allocate(kScratch + 256);
  auto lt = LtMatmuls::Create(
      lt_, {.stream = stream_.get(),
            .workspace = reinterpret_cast<void*>(
                (reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256),
            .workspace_bytes = kScratch});
  ASSERT_TRUE(lt.ok());
  Fake().heuristic_status = CUBLAS_STATUS_NOT_SUPPORTED;
  const Matrix a = Matrix::Dense(workspace.data(), DType::kBF16, 32, 16);
  const Matrix b = Matrix::Dense(workspace.data(), DType::kBF16, 32, 24);
  const Matrix c = Matrix::Dense(workspace.data(), DType::kF32, 16, 24);
  const absl::Status status =
      (*lt)->Run({.a = a, .b = b, .c = c, .transpose_a = true, .accumulate = true});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Message(status),
            "cuBLASLt, C[16, 24] of BF16 over k = 32, A transposed: choosing an algorithm: "
            "CUBLAS_STATUS_NOT_SUPPORTED");
  lt->reset();
}

TEST_F(MatmulsTest, SplitsOfKShareTheScratchMemory) {
  Make(nullptr);
  MatmulCase c = {.m = 64, .n = 64, .k = 64 * 40, .transpose_a = true, .accumulate = true};
  const int64_t before = Counters().launches;
  Check(c);
  EXPECT_EQ(Counters().launches - before, 2);  // the product in parts, then their sum
  c.accumulate = false;
  c.output = DType::kBF16;
  EXPECT_EQ(Check(c).size(), 64u * 64 * 2);
  c.addend = true;
  for (const int64_t gap : {0, 1}) {  // four at once, and one by one
    c.addend_gap = gap;
    Check(c);
  }
}

TEST_F(MatmulsTest, EmptyProductsDoNothing) {
  Make(&lt_);
  float* nothing = nullptr;
  const auto matrix = [&](int64_t rows, int64_t columns) {
    return Matrix::Dense(nothing, DType::kF32, rows, columns);
  };
  EXPECT_TRUE(matmuls_->Run({.a = matrix(0, 4), .b = matrix(4, 3), .c = matrix(0, 3)}).ok());
  EXPECT_TRUE(
      matmuls_->Run({.a = matrix(2, 0), .b = matrix(0, 3), .c = matrix(2, 3), .accumulate = true})
          .ok());
  EXPECT_EQ(Fake().heuristics, 0);
}

TEST_F(MatmulsTest, ALaunchThatFailsIsTold) {
  Make(nullptr);
  const Buffer holder = *device_->Allocate(4096);
  const Matrix a = Matrix::Dense(holder.data(), DType::kBF16, 16, 16);
  FailCall("cudaLaunchKernel", 1, cudaErrorInvalidConfiguration);
  const absl::Status status = matmuls_->Run({.a = a, .b = a, .c = a});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(Message(status)),
              testing::HasSubstr("a matrix product of [16, 16] over k = 16"));
}

TEST_F(MatmulsTest, ShapesThatDoNotFitAreAProgrammersError) {
  Make(&lt_);
  const Buffer holder = *device_->Allocate(4096);
  const Matrix a = Matrix::Dense(holder.data(), DType::kBF16, 16, 16);
  const Matrix b = Matrix::Dense(holder.data(), DType::kBF16, 8, 16);
  EXPECT_DEATH((void)matmuls_->Run({.a = a, .b = b, .c = a}), "broken invariant");
  EXPECT_DEATH((void)matmuls_->Run({.a = a, .b = a, .c = a, .accumulate = true}),
               "broken invariant");
  EXPECT_DEATH((void)matmuls_->Run({.a = a, .b = a, .c = a, .addend = a}), "broken invariant");
}

}  // namespace
}  // namespace shoal::worker::cuda
