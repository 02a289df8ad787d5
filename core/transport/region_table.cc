#include "core/transport/region_table.h"

#include <sys/mman.h>

#include <cerrno>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

uintptr_t Address(std::span<const std::byte> memory) {
  return reinterpret_cast<uintptr_t>(memory.data());
}

}  // namespace

absl::StatusOr<Residence> ResidenceOf(GpuMemory* gpu, std::span<const std::byte> memory) {
  if (gpu == nullptr || memory.empty()) {
    return Residence::kHost;
  }
  SHOAL_ASSIGN_OR_RETURN(const auto allocation, gpu->Find(memory.data()));
  return allocation.has_value() ? Residence::kGpu : Residence::kHost;
}

void RegionTable::Add(std::span<const std::byte> memory, Residence residence) {
  absl::MutexLock lock(&mutex_);
  known_.emplace(Address(memory), Known{.size = memory.size(), .residence = residence});
}

void RegionTable::Remove(std::span<const std::byte> memory) {
  absl::MutexLock lock(&mutex_);
  auto [it, end] = known_.equal_range(Address(memory));
  while (it != end && it->second.size != memory.size()) {
    ++it;
  }
  SHOAL_CHECK(it != end);
  known_.erase(it);
}

bool RegionTable::Contains(std::span<const std::byte> memory) const {
  if (memory.empty()) {
    return true;
  }
  absl::ReaderMutexLock lock(&mutex_);
  return Find(memory) != nullptr;
}

Residence RegionTable::ResidenceOf(std::span<const std::byte> memory) const {
  absl::ReaderMutexLock lock(&mutex_);
  const Known* const known = Find(memory);
  SHOAL_CHECK(known != nullptr);
  return known->residence;
}

const RegionTable::Known* RegionTable::Find(std::span<const std::byte> memory) const {
  const uintptr_t begin = Address(memory);
  // The nearest region below contains it, unless registrations overlap.
  for (auto it = known_.upper_bound(begin); it != known_.begin();) {
    --it;
    const uintptr_t into = begin - it->first;
    if (into <= it->second.size && memory.size() <= it->second.size - into) {
      return &it->second;
    }
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<Region>> RegisteredRegion::Register(
    std::shared_ptr<RegionTable> table, std::span<std::byte> memory, Access access,
    Residence residence) {
  if (memory.empty()) {
    return InvalidArgument("cannot register empty memory");
  }
  return std::make_shared<RegisteredRegion>(std::move(table), memory, access, residence);
}

RegisteredRegion::RegisteredRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory,
                                   Access access, Residence residence)
    : table_(std::move(table)), memory_(memory), access_(access) {
  table_->Add(memory_, residence);
}

RegisteredRegion::~RegisteredRegion() { table_->Remove(memory_); }

absl::StatusOr<std::shared_ptr<Region>> AnonymousRegion::Allocate(
    std::shared_ptr<RegionTable> table, int64_t bytes, Access access) {
  if (bytes <= 0) {
    return InvalidArgument("cannot allocate a region of {} bytes", bytes);
  }
  const size_t size = static_cast<size_t>(bytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoToStatus(errno, fmt::format("allocating a region of {} bytes", bytes));
  }
  madvise(memory, size, MADV_HUGEPAGE);  // a hint; it may be refused
  return std::shared_ptr<Region>(
      new AnonymousRegion(std::move(table), {static_cast<std::byte*>(memory), size}, access));
}

AnonymousRegion::~AnonymousRegion() {
  // The base class removes the memory from the table after this: nobody may post operations on a
  // region that is being destroyed.
  munmap(bytes().data(), bytes().size());
}

}  // namespace shoal::transport
