// A GPU for tests whose memory the processor cannot touch: its addresses are mapped without access,
// and a second mapping, which only copies use, holds the bytes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/testing/host_pins.h"

namespace shoal::transport {

// Thread-safe.
class GuardedGpu final : public GpuMemory {
 public:
  explicit GuardedGpu(int64_t bytes, bool pins_read_only = false)
      : size_(static_cast<size_t>(bytes)), pins_(pins_read_only) {
    const int fd = ::memfd_create("guarded GPU", MFD_CLOEXEC);
    SHOAL_CHECK(fd >= 0 && ::ftruncate(fd, bytes) == 0);
    guarded_ = Map(fd, PROT_NONE);
    bytes_ = Map(fd, PROT_READ | PROT_WRITE);
    ::close(fd);
    device_.name = "guarded GPU";
    device_.remote_writes = RemoteWrites::kVisible;
  }
  ~GuardedGpu() override {
    ::munmap(guarded_, size_);
    ::munmap(bytes_, size_);
  }
  GuardedGpu(const GuardedGpu&) = delete;
  GuardedGpu& operator=(const GuardedGpu&) = delete;

  // The addresses on the GPU, and the bytes there.
  std::span<std::byte> memory() const { return {guarded_, size_}; }
  std::span<std::byte> contents() const { return {bytes_, size_}; }

  int gpus() const override { return 1; }
  const GpuDevice& gpu(int) const override { return device_; }
  absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) override {
    if (!Has(address)) {
      return std::nullopt;
    }
    return GpuAllocation{.gpu = 0,
                         .begin = reinterpret_cast<uintptr_t>(guarded_),
                         .bytes = static_cast<int64_t>(size_)};
  }
  absl::Status Prepare(const void*) override { return absl::OkStatus(); }
  absl::StatusOr<UniqueFd> ExportDmaBuf(const void*, int64_t, DmaBufMapping) override {
    return Unimplemented("no dma-buf here");
  }
  absl::StatusOr<GpuShare> Share(std::span<const std::byte>) override {
    return Unimplemented("not shared");
  }
  absl::StatusOr<OpenedShare> Open(const GpuShare&) override { return Unimplemented("not shared"); }
  void Close(const OpenedShare&) override {}
  absl::Status FlushRemoteWrites(int) override { return absl::OkStatus(); }

  absl::Status Copy(std::span<const GpuCopy> copies) override {
    for (const GpuCopy& copy : copies) {
      const auto bytes = static_cast<size_t>(copy.bytes);
      if (!Has(copy.to) && !Has(copy.from)) {
        return InvalidArgument("neither {} nor {} is GPU memory", copy.to, copy.from);
      }
      {
        absl::MutexLock lock(&mutex_);
        ++copies_;
        SHOAL_RETURN_IF_ERROR(copy_status_);
        SHOAL_RETURN_IF_ERROR(pins_.CheckCopy({static_cast<const std::byte*>(copy.to), bytes}));
        SHOAL_RETURN_IF_ERROR(pins_.CheckCopy({static_cast<const std::byte*>(copy.from), bytes}));
      }
      std::memcpy(const_cast<std::byte*>(Bytes(copy.to)), Bytes(copy.from), bytes);
    }
    absl::MutexLock lock(&mutex_);
    ++batches_;
    return absl::OkStatus();
  }
  bool PinsReadOnly() const override { return pins_.pins_read_only(); }
  absl::Status Pin(std::span<const std::byte> memory, bool writable) override {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(pin_status_);
    return pins_.Pin(memory, writable);
  }
  void Unpin(std::span<const std::byte> memory) override {
    absl::MutexLock lock(&mutex_);
    SHOAL_CHECK(pins_.Unpin(memory.data()));
  }

  void FailCopies(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    copy_status_ = std::move(status);
  }
  void FailPins(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    pin_status_ = std::move(status);
  }
  int64_t copies() const {
    absl::MutexLock lock(&mutex_);
    return copies_;
  }
  // Successful calls of Copy.
  int64_t batches() const {
    absl::MutexLock lock(&mutex_);
    return batches_;
  }
  size_t pinned() const {
    absl::MutexLock lock(&mutex_);
    return pins_.count();
  }

 private:
  std::byte* Map(int fd, int protection) const {
    void* const mapped = ::mmap(nullptr, size_, protection, MAP_SHARED, fd, 0);
    SHOAL_CHECK(mapped != MAP_FAILED);
    return static_cast<std::byte*>(mapped);
  }
  bool Has(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    return at >= guarded_ && at < guarded_ + size_;
  }
  const std::byte* Bytes(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    return Has(address) ? bytes_ + (at - guarded_) : at;
  }

  const size_t size_;
  HostPins pins_;  // guarded by mutex_, except what the constructor set
  std::byte* guarded_ = nullptr;
  std::byte* bytes_ = nullptr;
  GpuDevice device_;

  mutable absl::Mutex mutex_;
  absl::Status copy_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status pin_status_ ABSL_GUARDED_BY(mutex_);
  int64_t copies_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t batches_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::transport
