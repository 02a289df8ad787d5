// Asks cuDNN about the graphs: does it have an engine for an H200 described to it, and can it
// compile the kernels? Needs no GPU but a driver library, which may be the toolkit's stub: that
// refuses to load compiled kernels, and the test accepts this answer.
#include "worker/ops/cuda/attention/cudnn/attention_graph.h"

#include <dlfcn.h>

#include <string_view>

#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::worker::cuda {
namespace {

constexpr std::string_view kH200 = R"({
  "deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceId": 0, "deviceVer": 900,
  "multiProcessorCount": 132, "driverVer": 13000, "maxSharedMemoryPerBlockOptin": 232448,
  "totalGlobalMem": 150000000000, "maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "smClockRateKHz": 1980000,
  "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "warpSize": 32,
  "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
  "maxRegistersPerSM": 65536, "pciDeviceId": 0, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
  "maxThreadsPerSM": 2048, "isTccDriver": 0, "supportCoopLaunch": 1,
  "maxSharedMemoryPerSM": 233472})";

class AttentionGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr &&
        dlopen(SHOAL_TEST_CUDA_LIBRARY_FOLDER "/stubs/libcuda.so", RTLD_NOW) == nullptr) {
      GTEST_SKIP() << "neither a driver nor the toolkit's stub of one";
    }
    const absl::StatusOr<Cudnn> cudnn =
        LoadCudnn({"libcudnn.so.9"}, {SHOAL_TEST_CUDA_LIBRARY_FOLDER});
    if (!cudnn.ok()) {
      GTEST_SKIP() << Message(cudnn.status());
    }
    cudnn_ = *cudnn;
  }

  // Whether an engine is found whose kernels compile.
  testing::AssertionResult IsKnown(CudnnGraph graph) {
    CudnnDescriptor device(cudnn_, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    device.Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, kH200);
    device.Finalize();
    if (!device.status().ok()) {
      return testing::AssertionFailure() << Message(device.status());
    }
    const absl::Status status = PlanGraph(std::move(graph), nullptr, &device).status();
    return status.ok() || absl::IsUnavailable(status)  // the driver refuses to load
               ? testing::AssertionSuccess()
               : testing::AssertionFailure() << Message(status);
  }

  static AttentionBounds BoundsOf(int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int64_t sequences, int64_t longest) {
    const int64_t width = heads * head_dim;
    return {.sequences = sequences,
            .longest = longest,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .qkv_stride = width + 2 * kv_heads * head_dim,
            .out_stride = width,
            .d_out_stride = width};
  }

  Cudnn cudnn_;
};

TEST_F(AttentionGraphTest, ForwardIsKnown) {
  EXPECT_TRUE(IsKnown(AttentionForwardGraph(cudnn_, BoundsOf(28, 4, 128, 8, 4096))));
  EXPECT_TRUE(IsKnown(AttentionForwardGraph(cudnn_, BoundsOf(12, 12, 64, 16, 1024))));
}

TEST_F(AttentionGraphTest, BackwardIsKnownWhereHeadsShareKeys) {
  EXPECT_TRUE(IsKnown(AttentionBackwardGraph(cudnn_, BoundsOf(28, 4, 128, 8, 4096))));
}

TEST_F(AttentionGraphTest, BackwardIsKnownWhereTheyDoNot) {
  EXPECT_TRUE(IsKnown(AttentionBackwardGraph(cudnn_, BoundsOf(16, 16, 128, 1, 65536))));
  EXPECT_TRUE(IsKnown(AttentionBackwardGraph(cudnn_, BoundsOf(12, 12, 64, 16, 1024))));
}

// Proves that the above can fail: heads of 12 elements have no engine.
TEST_F(AttentionGraphTest, WhatNoEngineRunsIsSaid) {
  EXPECT_FALSE(IsKnown(AttentionForwardGraph(cudnn_, BoundsOf(4, 4, 12, 1, 1024))));
}

}  // namespace
}  // namespace shoal::worker::cuda
