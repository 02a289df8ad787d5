// Values of a test in GPU memory.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "gtest/gtest.h"

namespace shoal::gpu {

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, count_ * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(data);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

}  // namespace shoal::gpu
