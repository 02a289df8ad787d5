#include "transport/verbs/verbs_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"

namespace shoal::transport {
namespace {

constexpr size_t kHugePage = 2 * kMiB;
// Smaller regions would waste most of a huge page.
constexpr size_t kHugeFrom = 32 * kMiB;

uintptr_t Address(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

// LOCAL_WRITE always: any region may be what a read goes into.
int AccessFlags(const VerbsDevice& device, Access access) {
  switch (access) {
    case Access::kLocal:
      return IBV_ACCESS_LOCAL_WRITE;
    case Access::kRemoteRead:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    case Access::kRemoteWrite:
      return IBV_ACCESS_LOCAL_WRITE |
             (device.description().windows ? IBV_ACCESS_MW_BIND
                                           : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  }
  return 0;
}

size_t LargestChunk(std::span<const std::shared_ptr<VerbsDevice>> devices, size_t bytes) {
  size_t chunk = bytes;
  for (const auto& device : devices) {
    const auto largest = static_cast<size_t>(device->description().max_region_bytes);
    if (largest < chunk) {
      chunk = std::max<size_t>(largest / 4096 * 4096, 4096);
    }
  }
  return chunk;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Registration>> Registration::Create(
    std::span<const std::shared_ptr<VerbsDevice>> devices, std::span<std::byte> memory,
    Access access) {
  std::unique_ptr<Registration> registration(new Registration(devices, memory));
  registration->chunk_bytes_ = LargestChunk(devices, memory.size());
  for (const auto& device : devices) {
    std::vector<ibv_mr*>& chunks = registration->regions_.emplace_back();
    for (size_t index = 0; index < registration->chunks(); ++index) {
      const std::span<std::byte> chunk = registration->Chunk(index);
      ibv_mr* mr = device->api().RegMr(device->pd(), chunk.data(), chunk.size(),
                                       AccessFlags(*device, access));
      if (mr == nullptr) {
        return VerbsError(
            errno, fmt::format("registering {} with {}",
                               FormatBytes(static_cast<int64_t>(memory.size())), device->name()));
      }
      chunks.push_back(mr);
    }
  }
  return registration;
}

Registration::~Registration() {
  for (size_t device = 0; device < regions_.size(); ++device) {
    for (ibv_mr* mr : regions_[device]) {
      devices_[device]->api().DeregMr(mr);
    }
  }
}

void RegistrationTable::Add(const Registration* registration) {
  absl::MutexLock lock(&mutex_);
  registrations_.emplace(Address(registration->memory().data()), registration);
}

void RegistrationTable::Remove(const Registration* registration) {
  absl::MutexLock lock(&mutex_);
  auto [it, end] = registrations_.equal_range(Address(registration->memory().data()));
  it = std::find_if(it, end, [&](const auto& entry) { return entry.second == registration; });
  SHOAL_CHECK(it != end);
  registrations_.erase(it);
  removals_.fetch_add(1, std::memory_order_release);
}

const Registration* RegistrationTable::Find(std::span<const std::byte> memory) const {
  const uintptr_t begin = Address(memory.data());
  absl::ReaderMutexLock lock(&mutex_);
  // The nearest region below is the one, unless registrations overlap.
  for (auto it = registrations_.upper_bound(begin); it != registrations_.begin();) {
    --it;
    const size_t size = it->second->memory().size();
    const uintptr_t into = begin - it->first;
    if (into <= size && memory.size() <= size - into) {
      return it->second;
    }
  }
  return nullptr;
}

const Registration* RegistrationCache::Find(std::span<const std::byte> memory) {
  const uint64_t removals = table_->removals();
  if (last_ != nullptr && removals == removals_) {
    const std::span<std::byte> last = last_->memory();
    const uintptr_t into = Address(memory.data()) - Address(last.data());
    if (into <= last.size() && memory.size() <= last.size() - into) {
      return last_;
    }
  }
  removals_ = removals;
  last_ = table_->Find(memory);
  return last_;
}

absl::Status VerbsRegion::Enter(std::span<const std::shared_ptr<VerbsDevice>> devices) {
  SHOAL_ASSIGN_OR_RETURN(registration_, Registration::Create(devices, memory_, access_));
  table_->Add(registration_.get());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Region>> VerbsRegion::Allocate(
    std::shared_ptr<RegistrationTable> table, std::span<const std::shared_ptr<VerbsDevice>> devices,
    int64_t bytes, Access access) {
  if (bytes <= 0) {
    return InvalidArgument("cannot allocate a region of {} bytes", bytes);
  }
  const auto size = static_cast<size_t>(bytes);
  size_t mapped = size;
  void* memory = MAP_FAILED;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (size >= kHugeFrom) {
    // Reserved huge pages: a device's translation table then has one entry in place of 512.
    mapped = (size + kHugePage - 1) / kHugePage * kHugePage;
    memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, kFlags | MAP_HUGETLB, -1, 0);
  }
  if (memory == MAP_FAILED) {
    mapped = size;
    memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (memory == MAP_FAILED) {
      return ErrnoToStatus(errno, fmt::format("allocating a region of {} bytes", bytes));
    }
    madvise(memory, mapped, MADV_HUGEPAGE);  // a hint; it may be refused
  }
  std::shared_ptr<VerbsRegion> region(
      new VerbsRegion(std::move(table), {static_cast<std::byte*>(memory), size}, mapped, access));
  SHOAL_RETURN_IF_ERROR(region->Enter(devices));
  return region;
}

absl::StatusOr<std::shared_ptr<Region>> VerbsRegion::Register(
    std::shared_ptr<RegistrationTable> table, std::span<const std::shared_ptr<VerbsDevice>> devices,
    std::span<std::byte> memory, Access access) {
  if (memory.empty()) {
    return InvalidArgument("cannot register empty memory");
  }
  std::shared_ptr<VerbsRegion> region(new VerbsRegion(std::move(table), memory, 0, access));
  SHOAL_RETURN_IF_ERROR(region->Enter(devices));
  return region;
}

VerbsRegion::~VerbsRegion() {
  if (registration_ != nullptr) {
    table_->Remove(registration_.get());
    registration_.reset();
  }
  if (mapped_bytes_ != 0) {
    munmap(memory_.data(), mapped_bytes_);
  }
}

}  // namespace shoal::transport
