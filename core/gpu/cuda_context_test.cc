// Every wait for a GPU ends, and what cannot be marked is waited for nevertheless.
#include "core/gpu/cuda_context.h"

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/gpu/fake_cuda/hung_work.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(20);

class CudaContextTest : public testing::Test {
 protected:
  void SetUp() override {
    SetFakeGpus({});
    context_ = *CudaContext::Create(0, RealClock());
    stream_ = *context_->NewStream(/*copies=*/false);
  }
  void TearDown() override { context_->DestroyStream(stream_); }

  std::unique_ptr<CudaContext> context_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaContextTest, WorkThatHangsIsGivenUpByName) {
  absl::Status failure;
  {
    const HungWork hung(stream_);
    const Mark mark = context_->PutMark(stream_, failure);
    ASSERT_TRUE(failure.ok());
    EXPECT_EQ(context_->LookUntil(mark, kShort), cudaErrorNotReady);
    for (const absl::Status& status :
         {context_->Await(mark, "the work of a test", kShort),
          context_->Synchronize(stream_, "the work of a test", kShort)}) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status));
      EXPECT_EQ(Message(status), "cuda:0: the work of a test: not done within 20ms");
    }
    context_->GiveMark(mark);
  }
  EXPECT_TRUE(context_->Synchronize(stream_, "the work of a test").ok());
}

TEST_F(CudaContextTest, AFenceWithoutEventsIsDoneWhenItsStreamsAre) {
  for (const char* const function :
       {"cudaEventCreateWithFlags", "cudaEventRecord", "cudaSetDevice"}) {
    CudaContext::Fence fence;
    {
      const HungWork hung(stream_);
      FailCall(function, 1, cudaErrorMemoryAllocation);
      fence = context_->PutFence();
      for (int look = 0; look < 20; ++look) {
        EXPECT_FALSE(context_->IsDone(fence)) << function;
      }
    }
    EXPECT_TRUE(context_->Wait(fence).ok());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
}

TEST_F(CudaContextTest, WhatIsOnAStreamThatIsGoneIsDone) {
  FailCall("cudaEventRecord", 1, cudaErrorMemoryAllocation);
  const cudaStream_t other = *context_->NewStream(/*copies=*/false);
  absl::Status failure;
  const Mark mark = context_->PutMark(other, failure);
  EXPECT_TRUE(absl::IsResourceExhausted(failure));
  context_->DestroyStream(other);
  EXPECT_EQ(context_->LookUntil(mark, absl::ZeroDuration()), cudaSuccess);
}

}  // namespace
}  // namespace shoal::gpu
