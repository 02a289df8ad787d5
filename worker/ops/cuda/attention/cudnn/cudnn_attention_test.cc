// When cuDNN's engines serve, and what happens when they do not, over the fake. attention_test
// checks what they are told.
#include "worker/ops/cuda/attention/cudnn/cudnn_attention.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/plan/memory/attention_scratch.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/attention/attention.h"
#include "worker/ops/cuda/attention/cudnn/testing/fake_cudnn.h"

namespace shoal::worker::cuda {
namespace {

constexpr AttentionShape kShape = {4, 2, 16};

class CudnnAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    cudnn_ = ResetFakeCudnn();
    Start({});
  }
  void TearDown() override {
    attention_.reset();
    EXPECT_EQ(Fake().objects, 0);
  }
  void Start(const gpu::FakeGpuOptions& gpus, bool deterministic = false) {
    attention_.reset();
    buffers_.clear();
    stream_.reset();
    device_.reset();
    gpu::SetFakeGpus(gpus);
    device_ = *MakeCudaDevice({.budget_bytes = budget_bytes_});
    stream_ = device_->NewStream();
    AttentionOptions options{.fused = nullptr,
                             .deterministic = deterministic,
                             .backward_pass = [this](bool fused) { backward_.push_back(fused); }};
    absl::StatusOr<std::unique_ptr<CudnnAttention>> fused =
        CudnnAttention::Create(cudnn_, *device_, *stream_);
    if (fused.ok()) {
      options.fused = *std::move(fused);
    }
    attention_ = std::make_unique<Attention>(*device_, *stream_, std::move(options));
  }

  Matrix Zeros(DType dtype, int64_t rows, int64_t columns) {
    buffers_.push_back(*device_->Allocate(rows * columns * SizeOf(dtype)));
    stream_->Zero(buffers_.back().data(), buffers_.back().bytes());
    return {buffers_.back().data(), dtype, rows, columns, columns};
  }
  // One forward and one backward pass over sequences of these lengths.
  void Attend(const std::vector<int32_t>& cu_seqlens, int64_t rows) {
    const Matrix qkv = Zeros(DType::kBF16, rows, kShape.qkv_size());
    const Matrix out = Zeros(DType::kBF16, rows, kShape.q_size());
    const Matrix d_qkv = Zeros(DType::kBF16, rows, kShape.qkv_size());
    const Matrix sums = Zeros(DType::kF32, kShape.heads, rows);
    auto* const log_sum_exp = static_cast<float*>(sums.data);
    ASSERT_TRUE(attention_->Forward(qkv, kShape, cu_seqlens, out, log_sum_exp).ok());
    ASSERT_TRUE(
        attention_->Backward(out, qkv, out, log_sum_exp, kShape, cu_seqlens, {}, d_qkv).ok());
    ASSERT_TRUE(stream_->Synchronize().ok());
  }

  Cudnn cudnn_;
  int64_t budget_bytes_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Attention> attention_;
  std::vector<Buffer> buffers_;
  std::vector<bool> backward_;  // of each pass: whether it was fused
};

TEST_F(CudnnAttentionTest, PlansOnceForBatchesUpToPowersOfTwo) {
  Attend({0, 5, 9, 30}, 32);
  EXPECT_EQ(Fake().plans, 2);
  Attend({0, 1, 2, 3, 40}, 40);  // four sequences, to which the above round up; below 128 tokens
  EXPECT_EQ(Fake().plans, 2);
  Attend({0, 1, 2, 3, 4, 40}, 40);
  EXPECT_EQ(Fake().plans, 4);
  Attend({0, 129}, 130);
  EXPECT_EQ(Fake().plans, 6);
  EXPECT_EQ(attention_->fused(), 8);
  EXPECT_EQ(backward_, std::vector<bool>(4, true));
}

TEST_F(CudnnAttentionTest, AddsUpInOneOrderWhereThatIsAskedFor) {
  Start({}, true);
  Attend({0, 5, 9}, 16);
  EXPECT_EQ(attention_->fused(), 1);  // only forward
  EXPECT_EQ(backward_, std::vector<bool>{false});
}

// The backward pass takes the planned memory, plus the library's own workspace.
TEST_F(CudnnAttentionTest, TakesTheMemoryThatIsPlanned) {
  Fake().workspace_bytes = 0;
  plan::ModelSpec spec;
  spec.kinds[0].attention = {
      .heads = kShape.heads, .kv_heads = kShape.kv_heads, .head_dim = kShape.head_dim};
  constexpr int32_t kTokens = 4096;
  const int64_t planned = plan::FusedAttentionBytes(spec, kTokens);
  std::vector<int32_t> begins;
  for (int32_t begin = 0; begin <= kTokens; begin += kTokens / 16) {
    begins.push_back(begin);
  }
  const auto taken_by = [&] {
    const int64_t before = device_->allocated_bytes();
    Attend(begins, kTokens);
    return device_->allocated_bytes() - before;
  };
  const int64_t first = taken_by();
  const int64_t again = taken_by();  // the test's own matrices: the rest was kept
  EXPECT_EQ(attention_->fused(), 4);
  EXPECT_EQ(device_->peak_bytes(), device_->allocated_bytes());
  constexpr int64_t kLists = 4096;  // of sequences, also kept
  EXPECT_LE(first - again, planned + kLists);
  EXPECT_GT(first - again, planned * 95 / 100);
}

TEST_F(CudnnAttentionTest, GivesBackWhatItKeepsWhereRoomIsShort) {
  budget_bytes_ = int64_t{64} << 20;
  Start({});
  Attend({0, 5, 9, 30}, 32);
  buffers_.clear();
  const int64_t kept = device_->allocated_bytes();
  {
    std::vector<Buffer> rest;
    int64_t taken = 0;
    for (const int64_t piece : {int64_t{1} << 20, int64_t{4096}}) {
      while (true) {
        absl::StatusOr<Buffer> more = device_->Allocate(piece);
        if (!more.ok()) {
          EXPECT_TRUE(absl::IsResourceExhausted(more.status())) << more.status();
          break;
        }
        taken += piece;
        rest.push_back(*std::move(more));
      }
    }
    EXPECT_GT(taken, budget_bytes_ - kept);
  }
  Attend({0, 5, 9, 30}, 32);
  EXPECT_EQ(attention_->fused(), 4);
  buffers_.clear();
  EXPECT_EQ(device_->allocated_bytes(), kept);
}

TEST_F(CudnnAttentionTest, LeavesGpusItDoesNotKnow) {
  gpu::FakeGpuOptions gpus;
  gpus.capability = 80;
  Start(gpus);
  Attend({0, 5, 9}, 16);
  EXPECT_EQ(Fake().plans, 0);
}

TEST_F(CudnnAttentionTest, WhatCannotBePlannedIsNotTriedAgain) {
  Fake().plan_status = CUDNN_STATUS_NOT_SUPPORTED;
  Attend({0, 5, 9}, 16);
  Fake().plan_status = CUDNN_STATUS_SUCCESS;
  Attend({0, 5, 9}, 16);
  EXPECT_EQ(Fake().plans, 0);
  EXPECT_EQ(attention_->fused(), 0);
}

TEST_F(CudnnAttentionTest, WhatCannotBeRunIsNotTriedAgain) {
  Fake().execute_status = CUDNN_STATUS_EXECUTION_FAILED;
  Attend({0, 5, 9}, 16);
  Fake().execute_status = CUDNN_STATUS_SUCCESS;
  Attend({0, 5, 9}, 16);
  EXPECT_EQ(Fake().runs, 0);
}

TEST_F(CudnnAttentionTest, DoesWithoutWhereItCannotStart) {
  Fake().create_status = CUDNN_STATUS_NOT_INITIALIZED;
  Start({});
  Attend({0, 5, 9}, 16);
  EXPECT_EQ(attention_->fused(), 0);
}

TEST_F(CudnnAttentionTest, DoesWithoutWhereMemoryIsShort) {
  Fake().workspace_bytes = int64_t{1} << 50;
  Attend({0, 5, 9}, 16);
  EXPECT_EQ(Fake().runs, 0);
}

}  // namespace
}  // namespace shoal::worker::cuda
