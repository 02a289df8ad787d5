// State shared by a GPU's operators: the stream, scratch memory, and the first failure. Used by the
// operator table and its parts, from one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "worker/backend/backend.h"

namespace shoal::worker::cuda {

class OpContext {
 public:
  // Both must outlive the context; the stream belongs to the device, which MakeCudaDevice made.
  OpContext(Device& device, Stream& stream);

  Device& device() { return device_; }
  cudaStream_t stream() const { return native_; }

  // Makes the device's GPU current in the calling thread, as launches need. The table calls it once
  // per operator. False if that failed, which is kept, or if the stream has failed, which it
  // reports itself.
  bool Begin(std::string_view what);

  // Returns `bytes` > 0 of device memory for the calling operator, aligned to kBufferAlignment,
  // with undefined contents. The next operator that asks gets the same memory, in the stream's
  // order. Null if there is none; then keeps a failure of `what`.
  void* Scratch(std::string_view what, int64_t bytes);

  // Keeps the first failure since the last Take. `what` names the operator.
  void Keep(std::string_view what, cudaError_t error);
  void Keep(std::string_view what, const absl::Status& status);
  absl::Status Take();

 private:
  Device& device_;
  const Stream& stream_;
  const cudaStream_t native_;
  Buffer scratch_;
  absl::Status failure_;
};

}  // namespace shoal::worker::cuda
