// What transports reach emulated GPUs by (gpu/emulation): GpuMemory over the
// runtime's functions, which pins memory of the host as the driver does. Counts its copies, and
// those of memory of the host that is not pinned.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/status.h"
#include "transport/gpu_memory.h"
#include "transport/testing/host_pins.h"

namespace shoal::transport {

class EmulatedGpuMemory final : public GpuMemory {
 public:
  explicit EmulatedGpuMemory(bool pins_read_only = false) : pins_(pins_read_only) {}

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
  absl::Status Copy(std::span<const GpuCopy> together) override {
    for (const GpuCopy& copy : together) {
      ++copies;
      const auto bytes = static_cast<size_t>(copy.bytes);
      SHOAL_ASSIGN_OR_RETURN(const auto to_gpu, Find(copy.to));
      const void* const on_host = to_gpu.has_value() ? copy.from : copy.to;
      {
        absl::MutexLock lock(&mutex_);
        const std::span<const std::byte> host(static_cast<const std::byte*>(on_host), bytes);
        SHOAL_RETURN_IF_ERROR(pins_.CheckCopy(host));
        pageable += pins_.Pinned(host) ? 0 : 1;
      }
      if (cudaMemcpy(copy.to, copy.from, bytes, cudaMemcpyDefault) != cudaSuccess) {
        return Internal("cudaMemcpy failed");
      }
    }
    return absl::OkStatus();
  }
  bool PinsReadOnly() const override { return pins_.pins_read_only(); }
  absl::Status Pin(std::span<const std::byte> memory, bool writable) override {
    absl::MutexLock lock(&mutex_);
    return pins_.Pin(memory, writable);
  }
  void Unpin(std::span<const std::byte> memory) override {
    absl::MutexLock lock(&mutex_);
    SHOAL_CHECK(pins_.Unpin(memory.data()));
  }

  std::atomic<int64_t> copies{0};
  std::atomic<int64_t> pageable{0};

 private:
  GpuDevice device_;
  absl::Mutex mutex_;
  HostPins pins_;  // guarded by mutex_ but for what it was made with
};

}  // namespace shoal::transport
