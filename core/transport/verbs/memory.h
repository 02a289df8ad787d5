// Memory registered with devices: the regions of a verbs transport.
//
// A region is registered once with every device in use, in chunks if a device's largest region is
// smaller. Keys are never logged. Where the device has type 2 memory windows, what peers may write
// has no remote right by itself: each connection opens a window to its own queue pair
// (queue_pair.h), so that a key serves nobody else and ends with the connection.
//
// GPU memory can be registered if all devices in use reach it (gpu_registration.h). Otherwise
// Register returns Unimplemented, and the caller copies through host memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/transport.h"
#include "core/transport/verbs/device.h"
#include "core/transport/verbs/gpu_registration.h"

namespace shoal::transport {

// What registers memory: the devices in use and, with GPUs, the registrar of their memory.
struct MemoryDevices {
  std::vector<std::shared_ptr<VerbsDevice>> list;
  std::shared_ptr<GpuMemory> gpu_memory;
  std::shared_ptr<GpuRegistrar> gpu_registrar;  // null without gpu_memory
};

// Returns the size of the largest chunk that all of them can register.
size_t LargestChunk(std::span<const std::shared_ptr<VerbsDevice>> devices, size_t bytes);

// A place in memory that is cut into chunks. Usually there is only one, which a comparison finds: a
// division costs more than the rest of a small operation.
struct ChunkPlace {
  size_t chunk = 0;
  size_t within = 0;
};
inline ChunkPlace FindChunk(size_t offset, size_t chunk_bytes) {
  if (offset < chunk_bytes) [[likely]] {
    return {0, offset};
  }
  return {offset / chunk_bytes, offset % chunk_bytes};
}

// The memory of one region, as the devices know it.
class Registration {
 public:
  static absl::StatusOr<std::unique_ptr<Registration>> Create(
      std::shared_ptr<const MemoryDevices> devices, std::span<std::byte> memory, Access access);
  ~Registration();

  std::span<std::byte> memory() const { return memory_; }
  // All chunks except the last have this size, on every device.
  size_t chunk_bytes() const { return chunk_bytes_; }
  size_t chunks() const { return (memory_.size() + chunk_bytes_ - 1) / chunk_bytes_; }
  std::span<std::byte> Chunk(size_t chunk) const {
    const size_t begin = chunk * chunk_bytes_;
    return memory_.subspan(begin, std::min(chunk_bytes_, memory_.size() - begin));
  }
  ChunkPlace Find(const std::byte* address) const {
    return FindChunk(static_cast<size_t>(address - memory_.data()), chunk_bytes_);
  }
  // `memory` must not be empty.
  bool Holds(std::span<const std::byte> memory) const {
    const size_t into =
        reinterpret_cast<uintptr_t>(memory.data()) - reinterpret_cast<uintptr_t>(memory_.data());
    return into <= memory_.size() && memory.size() <= memory_.size() - into;
  }
  ibv_mr* mr(size_t device, size_t chunk) const { return regions_[device][chunk]; }
  // Null for host memory.
  const GpuRegistration* gpu() const { return gpu_.has_value() ? &*gpu_ : nullptr; }

 private:
  Registration(std::shared_ptr<const MemoryDevices> devices, std::span<std::byte> memory)
      : devices_(std::move(devices)), memory_(memory) {}
  absl::Status RegisterHost(Access access);
  absl::Status RegisterGpu(Access access);

  const std::shared_ptr<const MemoryDevices> devices_;
  const std::span<std::byte> memory_;
  size_t chunk_bytes_ = 0;
  std::vector<std::vector<ibv_mr*>> regions_;  // by device, by chunk
  std::optional<GpuRegistration> gpu_;         // owns its regions
};

// All of a transport's registrations by address. Thread-safe.
class RegistrationTable {
 public:
  void Add(const Registration* registration);
  void Remove(const Registration* registration);
  // Returns the registration that holds all of `memory`, which must not be empty; null if there is
  // none. Valid as long as its region.
  const Registration* Find(std::span<const std::byte> memory) const;
  // Changes whenever a registration is removed: earlier results of Find may be invalid then.
  uint64_t removals() const { return removals_.load(std::memory_order_acquire); }

 private:
  mutable absl::Mutex mutex_;
  // By start address; the same memory may be registered more than once.
  std::multimap<uintptr_t, const Registration*> registrations_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> removals_{0};
};

// Remembers the last registration found, as operations of a batch mostly lie in one region. For one
// thread at a time.
class RegistrationCache {
 public:
  explicit RegistrationCache(const RegistrationTable* table) : table_(table) {}
  const Registration* Find(std::span<const std::byte> memory) {
    if (table_->removals() == removals_ && last_ != nullptr && last_->Holds(memory)) [[likely]] {
      return last_;
    }
    return FindAnew(memory);
  }

 private:
  const Registration* FindAnew(std::span<const std::byte> memory);

  const RegistrationTable* const table_;
  const Registration* last_ = nullptr;
  uint64_t removals_ = 0;
};

class VerbsRegion final : public Region {
 public:
  // Allocates zeroed pages, huge ones if the machine has them.
  static absl::StatusOr<std::shared_ptr<Region>> Allocate(
      std::shared_ptr<RegistrationTable> table, std::shared_ptr<const MemoryDevices> devices,
      int64_t bytes, Access access);
  static absl::StatusOr<std::shared_ptr<Region>> Register(
      std::shared_ptr<RegistrationTable> table, std::shared_ptr<const MemoryDevices> devices,
      std::span<std::byte> memory, Access access);
  ~VerbsRegion() override;
  std::span<std::byte> bytes() override { return memory_; }
  Access access() const override { return access_; }
  const Registration& registration() const { return *registration_; }
  // Identifies the owner of the region.
  const RegistrationTable* table() const { return table_.get(); }

 private:
  VerbsRegion(std::shared_ptr<RegistrationTable> table, std::span<std::byte> memory,
              size_t mapped_bytes, Access access)
      : table_(std::move(table)), memory_(memory), mapped_bytes_(mapped_bytes), access_(access) {}
  absl::Status Enter(std::shared_ptr<const MemoryDevices> devices);

  const std::shared_ptr<RegistrationTable> table_;
  const std::span<std::byte> memory_;
  const size_t mapped_bytes_;  // 0: the caller's memory
  const Access access_;
  std::unique_ptr<Registration> registration_;
};

}  // namespace shoal::transport
