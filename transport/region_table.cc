#include "transport/region_table.h"

#include <sys/mman.h>

#include <cerrno>

#include "common/check.h"
#include "common/status.h"

namespace shoal::transport {
namespace {

uintptr_t Address(std::span<const std::byte> memory) {
  return reinterpret_cast<uintptr_t>(memory.data());
}

}  // namespace

void RegionTable::Add(std::span<const std::byte> memory) {
  absl::MutexLock lock(&mutex_);
  sizes_.emplace(Address(memory), memory.size());
}

void RegionTable::Remove(std::span<const std::byte> memory) {
  absl::MutexLock lock(&mutex_);
  auto [it, end] = sizes_.equal_range(Address(memory));
  while (it != end && it->second != memory.size()) {
    ++it;
  }
  SHOAL_CHECK(it != end);
  sizes_.erase(it);
}

bool RegionTable::Contains(std::span<const std::byte> memory) const {
  if (memory.empty()) {
    return true;
  }
  const uintptr_t begin = Address(memory);
  absl::ReaderMutexLock lock(&mutex_);
  // The nearest region below is the one, unless registrations overlap.
  for (auto it = sizes_.upper_bound(begin); it != sizes_.begin();) {
    --it;
    const uintptr_t into = begin - it->first;
    if (into <= it->second && memory.size() <= it->second - into) {
      return true;
    }
  }
  return false;
}

RegisteredRegion::RegisteredRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory)
    : table_(std::move(table)), memory_(memory) {
  table_->Add(memory_);
}

RegisteredRegion::~RegisteredRegion() { table_->Remove(memory_); }

absl::StatusOr<std::shared_ptr<Region>> RegisterMemory(std::shared_ptr<RegionTable> table,
                                                       std::span<std::byte> memory) {
  if (memory.empty()) {
    return InvalidArgument("cannot register empty memory");
  }
  return std::make_shared<RegisteredRegion>(std::move(table), memory);
}

absl::StatusOr<std::shared_ptr<AnonymousRegion>> AnonymousRegion::Allocate(
    std::shared_ptr<RegionTable> table, int64_t bytes, Access access) {
  if (bytes <= 0) {
    return InvalidArgument("cannot allocate a region of {} bytes", bytes);
  }
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoToStatus(errno, fmt::format("allocating a region of {} bytes", bytes));
  }
  madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint; it may be refused
  const std::span<std::byte> span(static_cast<std::byte*>(memory), static_cast<size_t>(bytes));
  return std::shared_ptr<AnonymousRegion>(new AnonymousRegion(std::move(table), span, access));
}

AnonymousRegion::AnonymousRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory,
                                 Access access)
    : table_(std::move(table)), memory_(memory), access_(access) {
  table_->Add(memory_);
}

AnonymousRegion::~AnonymousRegion() {
  table_->Remove(memory_);
  munmap(memory_.data(), memory_.size());
}

}  // namespace shoal::transport
