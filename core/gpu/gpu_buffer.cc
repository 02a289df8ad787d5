#include "core/gpu/gpu_buffer.h"

#include "core/base/bytes.h"
#include "core/base/status.h"

namespace shoal::gpu {
namespace {

// Waits until no copy uses pinned memory any more, as copies before one that failed may: no
// document says that the runtime waits for them when the memory is freed.
void AwaitCopies(CudaContext& context) {
  CudaContext::Fence fence = context.PutFence();
  (void)context.Wait(fence);
}

}  // namespace

absl::StatusOr<GpuBuffer> GpuBuffer::Allocate(CudaContext& context, Kind kind, int64_t bytes) {
  GpuBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  SHOAL_RETURN_IF_ERROR(context.MakeCurrent());
  void* data = nullptr;
  const cudaError_t error = kind == Kind::kDevice ? cudaMalloc(&data, static_cast<size_t>(bytes))
                                                  : cudaHostAlloc(&data, static_cast<size_t>(bytes),
                                                                  cudaHostAllocPortable);
  SHOAL_RETURN_IF_ERROR(context.Check(
      error, fmt::format("taking {}{}", FormatBytes(bytes),
                         kind == Kind::kDevice ? "" : " of pinned memory of the host")));
  buffer.context_ = &context;
  buffer.kind_ = kind;
  buffer.data_ = static_cast<std::byte*>(data);
  return buffer;
}

GpuBuffer::~GpuBuffer() {
  if (data_ == nullptr) {
    return;
  }
  (void)context_->MakeCurrent();
  if (kind_ == Kind::kDevice) {
    (void)cudaFree(data_);
  } else {
    AwaitCopies(*context_);
    (void)cudaFreeHost(data_);
  }
  (void)cudaGetLastError();
}

GpuBuffer& GpuBuffer::operator=(GpuBuffer&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  return *this;
}

absl::StatusOr<PinnedRange> PinnedRange::Pin(CudaContext& context, std::span<std::byte> memory) {
  SHOAL_RETURN_IF_ERROR(context.MakeCurrent());
  SHOAL_RETURN_IF_ERROR(context.Check(
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
      fmt::format("pinning {} of the host", FormatBytes(static_cast<int64_t>(memory.size())))));
  return PinnedRange(context, memory.data());
}

PinnedRange::~PinnedRange() {
  if (data_ == nullptr) {
    return;
  }
  (void)context_->MakeCurrent();
  AwaitCopies(*context_);
  (void)cudaHostUnregister(data_);
  (void)cudaGetLastError();
}

}  // namespace shoal::gpu
