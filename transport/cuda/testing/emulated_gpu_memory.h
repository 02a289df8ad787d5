// What transports reach emulated GPUs by (gpu/emulation): GpuMemory over the
// runtime's functions. Counts its copies.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "common/status.h"
#include "transport/gpu_memory.h"

namespace shoal::transport {

class EmulatedGpuMemory final : public GpuMemory {
 public:
  int gpus() const override { return 1; }
  const GpuDevice& gpu(int) const override { return device_; }
  absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) override {
    cudaPointerAttributes attributes = {};
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess ||
        attributes.type != cudaMemoryTypeDevice) {
      return std::nullopt;
    }
    return GpuAllocation{};
  }
  absl::Status Prepare(const void*) override { return absl::OkStatus(); }
  absl::StatusOr<UniqueFd> ExportDmaBuf(const void*, int64_t, DmaBufMapping) override {
    return Unimplemented("no dma-buf here");
  }
  absl::Status FlushRemoteWrites(int) override { return absl::OkStatus(); }
  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    ++copies;
    return cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault) == cudaSuccess
               ? absl::OkStatus()
               : Internal("cudaMemcpy failed");
  }
  absl::Status Pin(std::span<const std::byte>, bool) override { return absl::OkStatus(); }
  void Unpin(std::span<const std::byte>) override {}

  std::atomic<int64_t> copies{0};

 private:
  GpuDevice device_;
};

}  // namespace shoal::transport
