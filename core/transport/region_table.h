// The memory that a transport knows, used to check that operations name nothing else. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// Where memory lies: the processor accesses a GPU's only through GpuMemory::Copy.
enum class Residence : uint8_t { kHost, kGpu };

// `gpu` may be null: then all memory is host memory.
absl::StatusOr<Residence> ResidenceOf(GpuMemory* gpu, std::span<const std::byte> memory);

class RegionTable {
 public:
  void Add(std::span<const std::byte> memory, Residence residence = Residence::kHost);
  void Remove(std::span<const std::byte> memory);
  // Whether [memory) lies within one known region. Empty memory always does.
  bool Contains(std::span<const std::byte> memory) const;
  // The memory must lie within a known region.
  Residence ResidenceOf(std::span<const std::byte> memory) const;

 private:
  struct Known {
    size_t size = 0;
    Residence residence = Residence::kHost;
  };
  // Returns null if no region contains it.
  const Known* Find(std::span<const std::byte> memory) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // By start address; the same memory may be registered more than once.
  std::multimap<uintptr_t, Known> known_ ABSL_GUARDED_BY(mutex_);
};

// A region over the caller's memory, or (AnonymousRegion) its own.
class RegisteredRegion : public Region {
 public:
  // InvalidArgument if the memory is empty.
  static absl::StatusOr<std::shared_ptr<Region>> Register(std::shared_ptr<RegionTable> table,
                                                          std::span<std::byte> memory,
                                                          Access access,
                                                          Residence residence = Residence::kHost);
  RegisteredRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory, Access access,
                   Residence residence = Residence::kHost);
  ~RegisteredRegion() override;
  std::span<std::byte> bytes() override { return memory_; }
  Access access() const override { return access_; }
  // Identifies the owner of the region.
  const RegionTable* table() const { return table_.get(); }

 private:
  const std::shared_ptr<RegionTable> table_;
  const std::span<std::byte> memory_;
  const Access access_;
};

// Private zeroed pages, for transports whose peers do not map memory.
class AnonymousRegion final : public RegisteredRegion {
 public:
  static absl::StatusOr<std::shared_ptr<Region>> Allocate(std::shared_ptr<RegionTable> table,
                                                          int64_t bytes, Access access);
  ~AnonymousRegion() override;

 private:
  using RegisteredRegion::RegisteredRegion;
};

}  // namespace shoal::transport
