#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/transport/cuda/testing/fake_gpu_memory.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/exchange/testing/devices.h"

namespace shoal::worker {

std::vector<DeviceCase> DeviceCases() {
  return {{.name = "FakeGpu",
           .make = [](uint64_t seed, int64_t fail_at_copy,
                      int64_t budget_bytes) -> std::unique_ptr<Device> {
             if (budget_bytes == 0) {  // otherwise a second device
               gpu::SetFakeGpus({.seed = seed});
             }
             if (fail_at_copy > 0) {
               gpu::FailWork(fail_at_copy, cudaErrorIllegalAddress);
             }
             return *MakeCudaDevice({.budget_bytes = budget_bytes});
           },
           .refuse_event =
               [](int64_t number) {
                 gpu::FailCall("cudaEventRecord", number, cudaErrorMemoryAllocation);
               },
           .reach = std::make_shared<transport::FakeGpuMemory>()}};
}

}  // namespace shoal::worker
