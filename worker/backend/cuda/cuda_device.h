// A GPU as a device (backend.h), through the CUDA runtime. Programs choose the runtime by what they
// link: CUDA's own, or its fake (core/gpu/fake_cuda/fake_cuda.h) in tests.
//
// Memory comes in large reservations that are kept: in steady state the driver is not called.
// Memory may be freed while work already on the device's streams still uses it; it is reused once
// that work is done. (Work put on streams after the free must not use it.) Host memory is pinned,
// and kept the same way. If there is no room for an allocation, what holders keep only for reuse
// (KeptMemory) is freed first.
//
// Copies between the GPU and pinned memory run concurrently with everything else. The driver stages
// copies with other host memory and may block the caller for everything on the stream: a copy to
// the host until it is done, one from the host perhaps until earlier work is done. They are meant
// for small data or for start-up, and promise nothing more: as always, the memory must stay
// unchanged until an event after the copy. Fill accepts only GPU memory and pinned memory.
//
// Event::at() uses the GPU's clock, mapped to the host's: durations between events of the device
// are right to a few microseconds, and the time itself to a few tens. A wait for an event sleeps;
// one without a timeout gives up after gpu::kWorkTimeout, with DeadlineExceeded. An event that
// could not be recorded reports why, and is done when its stream is.
//
// Threads: as in backend.h; any thread may use the device, which makes the GPU current there.
//
// Failure: a stream keeps only its first error, and takes no more work until its Synchronize has
// returned it (what was refused, above all memory, may be available later). If the GPU itself has
// failed (IsLasting), everything afterwards fails too, and says so.
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
  // 0: what is free when the device is made, less what the driver and the libraries take, but at
  // most this process's share of the GPU.
  int64_t budget_bytes = 0;
  // Processes that share the GPU, each equally. The share is of all its memory, so that it does not
  // depend on what the others have taken already.
  int sharing = 1;
};

// NotFound without a driver or this GPU; FailedPrecondition if it is not supported;
// ResourceExhausted if less than the budget is free.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options,
                                                       Clock& clock = RealClock());

// For operators, on streams of MakeCudaDevice's devices. Returns the runtime's handle, which the
// Stream owns; null if the stream could not be made, as its Synchronize reports.
cudaStream_t NativeStream(Stream& stream);
// Returns the stream's failure that its Synchronize has yet to return: put no kernels on it then
// either, as what they read may not have been copied.
const absl::Status& KeptFailure(const Stream& stream);
const gpu::GpuDescription& GpuOf(const Device& device);
// Makes the device's GPU current in the calling thread, as launches need.
absl::Status MakeCurrent(const Device& device);

// While this lives, the device calls `give_back` if it has no room for an allocation, in the
// allocating thread: it frees what its holder keeps and is not using, waits for nobody, and returns
// whether there was any.
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
