#include "worker/ops/cuda/op_context.h"

#include <algorithm>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kLeastScratchBytes = int64_t{1} << 20;

}  // namespace

OpContext::OpContext(Device& device, Stream& stream)
    : device_(device), stream_(stream), native_(NativeStream(stream)) {}

bool OpContext::Begin(std::string_view what) {
  const absl::Status status = MakeCurrent(device_);
  Keep(what, status);
  return status.ok() && KeptFailure(stream_).ok();
}

void* OpContext::Scratch(std::string_view what, int64_t bytes) {
  if (bytes > scratch_.bytes()) {
    const int64_t grown =
        RoundUp(std::max({bytes, kLeastScratchBytes, 2 * scratch_.bytes()}), kLeastScratchBytes);
    // The device reuses freed memory only after the work enqueued so far.
    scratch_.Reset();
    absl::StatusOr<Buffer> buffer = device_.Allocate(grown);
    if (!buffer.ok()) {
      Keep(what, buffer.status());
      return nullptr;
    }
    scratch_ = *std::move(buffer);
  }
  return scratch_.data();
}

void OpContext::Keep(std::string_view what, cudaError_t error) {
  if (error == cudaSuccess) {
    return;
  }
  const absl::Status status = ToStatus(error, GpuOf(device_).index, what);
  if (failure_.ok()) {
    failure_ = status;
  }
}

void OpContext::Keep(std::string_view what, const absl::Status& status) {
  if (failure_.ok() && !status.ok()) {
    failure_ = Annotate(status, what);
  }
}

absl::Status OpContext::Take() { return std::exchange(failure_, absl::OkStatus()); }

}  // namespace shoal::worker::cuda
