// A GPU as a device (backend.h), by the CUDA runtime. Programs choose the runtime by what they
// link: CUDA's own, or its emulation (core/gpu/fake_cuda/emulated_gpu.h) in tests.
//
// Memory comes in large reservations that are kept: in steady state nothing is asked of the driver.
// What is freed can be freed while work that was put on the device's streams still uses it; it is
// given out again once that work is done. (Work put on streams after the free must not use it.)
// Memory of the host is pinned, and kept the same way.
//
// Copies between the GPU and pinned memory run beside everything else. Those with other memory of
// the host are staged by the driver and may keep the caller waiting for all that is on the stream:
// one to the host until it is done, one from the host perhaps until what is before it is. Nothing
// more is promised of them: that memory stays as it is until an event after the copy, as ever, and
// they are for what is small or at a beginning. Fill takes memory of the GPU and pinned memory
// alone.
//
// Where there is no room for an allocation, what holders keep only to use it again (KeptMemory) is
// given back first.
//
// Event::at() is by the GPU's clock, mapped to the host's: durations between events of the device
// are right to a few microseconds, and the time itself to a few tens. A wait for an event sleeps,
// and one without a timeout of its own gives up after gpu::kWorkTimeout, with DeadlineExceeded. An
// event that could not be recorded tells why, and is done when its stream is.
//
// Threads: as backend.h says; any thread may use the device, which makes the GPU current there. Of
// all streams of a device only the first error of each is kept, and nothing more is put on that
// stream until its Synchronize has told of it (what was refused may be had later, memory above
// all); where the GPU itself has failed (IsLasting), everything after that fails too, and says so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/gpu/gpus.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker {

struct CudaDeviceOptions {
  int gpu = 0;
  // 0: what is free when the device is made, but no more than this process's share of the GPU; and
  // but for what the driver and the libraries take.
  int64_t budget_bytes = 0;
  // Processes that share the GPU, each as much of it. The share is of all its memory, so that it
  // does not depend on what the others have taken already.
  int sharing = 1;
};

// NotFound without a driver or this GPU; FailedPrecondition where it is not one of ours;
// ResourceExhausted where less than the budget is free.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options,
                                                       Clock& clock = RealClock());

// For operators, of what MakeCudaDevice has made.
// The runtime's handle of a stream, which stays the Stream's; null where the stream could not be
// made, which its Synchronize tells.
cudaStream_t NativeStream(Stream& stream);
// What the stream has failed with so far and its Synchronize is yet to tell: kernels are not to be
// put on it then either, for what they read was perhaps not copied.
const absl::Status& KeptFailure(const Stream& stream);
const gpu::GpuDescription& GpuOf(const Device& device);
// Makes the device's GPU the calling thread's, as launches want it.
absl::Status MakeCurrent(const Device& device);

// As long as this lives, `give_back` is called where the device has no room for an allocation, by
// the thread that allocates: it frees what its holder keeps and does not use just then, waits for
// nobody, and says whether there was any.
class KeptMemory {
 public:
  KeptMemory(Device& device, std::function<bool()> give_back);
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  bool GiveBack() const { return give_back_(); }

 private:
  Device& device_;
  const std::function<bool()> give_back_;
};

}  // namespace shoal::worker
