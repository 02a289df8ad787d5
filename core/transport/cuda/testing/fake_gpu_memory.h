// GpuMemory for fake GPUs (core/gpu/fake_cuda), over the runtime's functions; pins host memory
// as the driver does. Counts its copies, and those that touch unpinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/testing/host_pins.h"

namespace shoal::transport {

class FakeGpuMemory final : public GpuMemory {
 public:
  // `seen`: numbers of the GPUs that this process would see.
  explicit FakeGpuMemory(bool pins_read_only = false, std::vector<int> seen = {0})
      : seen_(std::move(seen)), devices_(seen_.size()), pins_(pins_read_only) {
    for (size_t i = 0; i < seen_.size(); ++i) {
      devices_[i].uuid = Uuid(seen_[i]);
    }
  }

  int gpus() const override { return static_cast<int>(seen_.size()); }
  const GpuDevice& gpu(int index) const override { return devices_[static_cast<size_t>(index)]; }
  absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) override {
    const auto found = gpu::FindAllocation(address);
    if (!found.has_value()) {
      return std::nullopt;
    }
    return GpuAllocation{.gpu = found->device,
                         .begin = reinterpret_cast<uintptr_t>(found->begin),
                         .bytes = found->bytes};
  }
  absl::Status Prepare(const void*) override { return absl::OkStatus(); }
  absl::StatusOr<UniqueFd> ExportDmaBuf(const void*, int64_t, DmaBufMapping) override {
    return Unimplemented("no dma-buf here");
  }
  absl::StatusOr<GpuShare> Share(std::span<const std::byte> memory) override {
    const auto found = gpu::FindAllocation(memory.data());
    cudaIpcMemHandle_t handle = {};
    if (!found.has_value() || cudaIpcGetMemHandle(&handle, found->begin) != cudaSuccess) {
      return InvalidArgument("not GPU memory");
    }
    GpuShare share{.gpu = Uuid(found->device),
                   .offset = memory.data() - found->begin,
                   .bytes = static_cast<int64_t>(memory.size())};
    std::ranges::copy(handle.reserved, share.allocation.begin());
    return share;
  }
  absl::StatusOr<OpenedShare> Open(const GpuShare& share) override {
    if (std::ranges::find(seen_, share.gpu, [](int gpu) { return Uuid(gpu); }) == seen_.end()) {
      return FailedPrecondition("memory of {}, which this process does not see",
                                GpuName(share.gpu));
    }
    cudaIpcMemHandle_t handle = {};
    std::ranges::copy(share.allocation, handle.reserved);
    void* opened = nullptr;
    if (const cudaError_t error =
            cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess);
        error != cudaSuccess) {
      cudaGetLastError();
      return NotFound("memory of {} cannot be opened: {}", GpuName(share.gpu),
                      cudaGetErrorName(error));
    }
    const int64_t bytes = gpu::FindAllocation(opened)->bytes;
    auto* const begin = static_cast<std::byte*>(opened);
    if (share.offset < 0 || share.offset > bytes || share.bytes > bytes - share.offset) {
      cudaIpcCloseMemHandle(opened);
      return InvalidArgument("{} bytes at {} of an allocation of {}", share.bytes, share.offset,
                             bytes);
    }
    ++open_shares;
    return OpenedShare{.memory = {begin + share.offset, static_cast<size_t>(share.bytes)},
                       .allocation = begin};
  }
  void Close(const OpenedShare& opened) override {
    while (!closes) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    SHOAL_CHECK(cudaIpcCloseMemHandle(opened.allocation) == cudaSuccess);
    --open_shares;
  }

  absl::Status FlushRemoteWrites(int) override { return absl::OkStatus(); }
  absl::Status Copy(std::span<const GpuCopy> together) override {
    for (const GpuCopy& copy : together) {
      ++copies;
      const auto bytes = static_cast<size_t>(copy.bytes);
      SHOAL_ASSIGN_OR_RETURN(const auto to_gpu, Find(copy.to));
      SHOAL_ASSIGN_OR_RETURN(const auto from_gpu, Find(copy.from));
      const void* const on_host = to_gpu.has_value() ? copy.from : copy.to;
      if (!to_gpu.has_value() || !from_gpu.has_value()) {
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
  std::atomic<int64_t> open_shares{0};
  std::atomic<bool> closes{true};  // false: behaves as a process that hangs

 private:
  // Returns zeros for a GPU that does not exist.
  static std::array<char, 16> Uuid(int gpu) {
    cudaDeviceProp properties = {};
    std::array<char, 16> uuid = {};
    if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess) {
      std::ranges::copy(properties.uuid.bytes, uuid.begin());
    }
    cudaGetLastError();
    return uuid;
  }

  const std::vector<int> seen_;
  std::vector<GpuDevice> devices_;  // by index in seen_
  absl::Mutex mutex_;
  HostPins pins_;  // guarded by mutex_, except what the constructor set
};

}  // namespace shoal::transport
