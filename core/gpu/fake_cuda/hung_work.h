// Work in tests that does not end by itself, as on a GPU that hangs or waits for others.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace shoal::gpu {

namespace fake_cuda {
struct Point;
}  // namespace fake_cuda

class HungWork {
 public:
  // Later work on the stream waits for it.
  explicit HungWork(cudaStream_t stream);
  // Ends it.
  ~HungWork();
  HungWork(const HungWork&) = delete;
  HungWork& operator=(const HungWork&) = delete;

 private:
  const std::shared_ptr<fake_cuda::Point> end_;
};

}  // namespace shoal::gpu
