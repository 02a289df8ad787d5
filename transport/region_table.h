// The memory a transport knows, for the check that operations name nothing else. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/transport.h"

namespace shoal::transport {

class RegionTable {
 public:
  void Add(std::span<const std::byte> memory);
  void Remove(std::span<const std::byte> memory);
  // Whether [memory) lies within one known region. Empty memory always does.
  bool Contains(std::span<const std::byte> memory) const;

 private:
  mutable absl::Mutex mutex_;
  // By begin; the same memory may be registered more than once.
  std::multimap<uintptr_t, size_t> sizes_ ABSL_GUARDED_BY(mutex_);
};

// A region over memory of the caller's, for local use.
class RegisteredRegion final : public Region {
 public:
  RegisteredRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory);
  ~RegisteredRegion() override;
  std::span<std::byte> bytes() override { return memory_; }
  Access access() const override { return Access::kLocal; }

 private:
  const std::shared_ptr<RegionTable> table_;
  const std::span<std::byte> memory_;
};

// Registers the caller's memory; InvalidArgument if it is empty.
absl::StatusOr<std::shared_ptr<Region>> RegisterMemory(std::shared_ptr<RegionTable> table,
                                                       std::span<std::byte> memory);

// Private zeroed pages of any access: what transports use whose peers do not map memory. Also the
// identity check that an exposed region was allocated by this transport.
class AnonymousRegion final : public Region {
 public:
  static absl::StatusOr<std::shared_ptr<AnonymousRegion>> Allocate(
      std::shared_ptr<RegionTable> table, int64_t bytes, Access access);
  ~AnonymousRegion() override;
  std::span<std::byte> bytes() override { return memory_; }
  Access access() const override { return access_; }
  const RegionTable* table() const { return table_.get(); }

 private:
  AnonymousRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory, Access access);
  const std::shared_ptr<RegionTable> table_;
  const std::span<std::byte> memory_;
  const Access access_;
};

}  // namespace shoal::transport
