// The table when the machine refuses, and when there is no work: over the fake runtime only.
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/cuda_ops.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class CudaOpsFailureTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu::SetFakeGpus({});
    device_ = MakeCudaDevice({.budget_bytes = 64 * kMiB}).value();
    ops_ = MakeCudaOps(*device_, {.cublas_lt = false, .cudnn = false}).value();
    buffer_ = device_->Allocate(kMiB).value();
  }
  Matrix Dense(int64_t rows, int64_t columns) {
    return Matrix::Dense(buffer_.data(), DType::kF32, rows, columns);
  }
  float* floats() { return reinterpret_cast<float*>(buffer_.data()); }
  int32_t* integers() { return reinterpret_cast<int32_t*>(buffer_.data()); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  Buffer buffer_;
};

TEST_F(CudaOpsFailureTest, WhatIsEmptyIsNotLaunched) {
  const int64_t before = gpu::Counters().launches;
  ops_->Zero(Dense(0, 8));
  ops_->Convert(Dense(0, 8), Dense(0, 8));
  ops_->AddColumnSums(Dense(0, 8), floats());
  ops_->EmbeddingBackward(integers(), 0, Dense(4, 8), 1.0f, Dense(4, 8));
  ops_->ScatterRows(Dense(4, 8), integers(), 0, Dense(4, 8));
  ops_->SoftmaxCrossEntropy(Dense(4, 8), {.labels = integers(), .weights = floats(), .count = 0},
                            1.0f, 0.0f, Matrix(), {reinterpret_cast<double*>(buffer_.data())});
  ops_->RotaryForward(Dense(4, 8), 0, 4,
                      {.positions = integers(), .cosines = floats(), .sines = floats()});
  EXPECT_TRUE(ops_->Finish().ok());
  EXPECT_EQ(gpu::Counters().launches, before);
}

// "Stream not ready" must not count as the next operator's failure.
TEST_F(CudaOpsFailureTest, LookingForFailuresNeitherWaitsNorMakesOne) {
  ops_->Zero(Dense(4, 8));
  EXPECT_TRUE(ops_->Check().ok());
  ops_->Zero(Dense(4, 8));
  EXPECT_TRUE(ops_->Check().ok());
  EXPECT_TRUE(ops_->Finish().ok());
}

TEST_F(CudaOpsFailureTest, AnOperatorWithoutScratchMemoryIsNamedAndTheNextOneWorks) {
  ASSERT_TRUE(ops_->Finish().ok());
  {
    // Takes all memory that is left.
    std::vector<Buffer> taken;
    for (int64_t bytes = 64 * kMiB; bytes >= kMiB / 16;) {
      absl::StatusOr<Buffer> more = device_->Allocate(bytes);
      if (more.ok()) {
        taken.push_back(*std::move(more));
      } else {
        bytes /= 2;
      }
    }
    ops_->AddColumnSums(Dense(64, 8), floats());
    const absl::Status status = ops_->Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("AddColumnSums"));
    EXPECT_TRUE(ops_->Finish().ok());
  }
  ops_->AddColumnSums(Dense(64, 8), floats());
  EXPECT_TRUE(ops_->Finish().ok());
}

TEST_F(CudaOpsFailureTest, AFailedLaunchIsKeptForFinish) {
  ops_->Zero(Dense(4, 8));
  gpu::FailWork(1, cudaErrorIllegalAddress);
  EXPECT_FALSE(ops_->Finish().ok());
}

// An operator's inputs may not have been copied then, such as tokens, which say where it reads.
TEST_F(CudaOpsFailureTest, NothingIsLaunchedOnAStreamThatHasFailed) {
  ops_->Zero(Dense(4, 8));
  ASSERT_TRUE(ops_->Finish().ok());
  const int64_t before = gpu::Counters().launches;
  gpu::FailCall("cudaEventRecord", 1, cudaErrorMemoryAllocation);
  (void)ops_->stream().Record();
  ops_->EmbeddingForward(integers(), 4, Dense(4, 8), 1.0f, Dense(4, 8));
  EXPECT_EQ(gpu::Counters().launches, before);
  for (int look = 0; look < 2; ++look) {
    EXPECT_EQ(ops_->Check().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(ops_->stream().Synchronize().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ops_->Check().ok());
  ops_->Zero(Dense(4, 8));
  EXPECT_TRUE(ops_->Finish().ok());
  EXPECT_EQ(gpu::Counters().launches, before + 1);
}

TEST_F(CudaOpsFailureTest, CheckDoesNotWait) {
  ops_->Zero(Dense(4, 8));
  EXPECT_TRUE(ops_->Check().ok());
  EXPECT_TRUE(ops_->Finish().ok());
}

TEST_F(CudaOpsFailureTest, AWrongShapeEndsTheProcess) {
  EXPECT_DEATH(ops_->SwiGluForward(Dense(4, 16), Dense(4, 7)), "gate_up.columns");
}

}  // namespace
}  // namespace shoal::worker
