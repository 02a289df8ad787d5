#include "core/transport/verbs/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr size_t kHugePage = 2 * kMiB;
// Smaller regions would waste most of a huge page.
constexpr size_t kHugeFrom = 32 * kMiB;

uintptr_t Address(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

// Always LOCAL_WRITE: any region may be the target of a read.
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

}  // namespace

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

absl::StatusOr<std::unique_ptr<Registration>> Registration::Create(
    std::shared_ptr<const MemoryDevices> devices, std::span<std::byte> memory, Access access) {
  bool on_gpu = false;
  if (devices->gpu_memory != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const auto allocation, devices->gpu_memory->Find(memory.data()));
    on_gpu = allocation.has_value();
  }
  std::unique_ptr<Registration> registration(new Registration(std::move(devices), memory));
  registration->chunk_bytes_ = LargestChunk(registration->devices_->list, memory.size());
  SHOAL_RETURN_IF_ERROR(on_gpu ? registration->RegisterGpu(access)
                               : registration->RegisterHost(access));
  return registration;
}

absl::Status Registration::RegisterHost(Access access) {
  for (const auto& device : devices_->list) {
    std::vector<ibv_mr*>& chunks = regions_.emplace_back();
    for (size_t index = 0; index < this->chunks(); ++index) {
      const std::span<std::byte> chunk = Chunk(index);
      ibv_mr* mr = device->api().RegMr(device->pd(), chunk.data(), chunk.size(),
                                       AccessFlags(*device, access));
      if (mr == nullptr) {
        return VerbsError(
            errno, fmt::format("registering {} with {}",
                               FormatBytes(static_cast<int64_t>(memory_.size())), device->name()));
      }
      chunks.push_back(mr);
    }
  }
  return absl::OkStatus();
}

absl::Status Registration::RegisterGpu(Access access) {
  // The same rights everywhere: windows only if all devices have them.
  int flags = 0;
  for (const auto& device : devices_->list) {
    flags |= AccessFlags(*device, access);
  }
  SHOAL_ASSIGN_OR_RETURN(gpu_, devices_->gpu_registrar->Register(
                                   memory_.data(), static_cast<int64_t>(memory_.size()), flags));
  for (size_t device = 0; device < devices_->list.size(); ++device) {
    std::vector<ibv_mr*>& chunks = regions_.emplace_back();
    for (const GpuPiece& piece : gpu_->pieces[device]) {
      if (piece.offset != static_cast<int64_t>(chunks.size() * chunk_bytes_)) {
        break;
      }
      chunks.push_back(piece.mr);
    }
    if (chunks.size() != this->chunks()) {
      return Unimplemented("{} cannot reach {} of GPU memory; copy through host memory",
                           devices_->list[device]->name(),
                           FormatBytes(static_cast<int64_t>(memory_.size())));
    }
  }
  return absl::OkStatus();
}

Registration::~Registration() {
  if (gpu_.has_value()) {
    devices_->gpu_registrar->Deregister(*gpu_);
    return;
  }
  for (size_t device = 0; device < regions_.size(); ++device) {
    for (ibv_mr* mr : regions_[device]) {
      devices_->list[device]->api().DeregMr(mr);
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
  // The nearest region below contains it, unless registrations overlap.
  for (auto it = registrations_.upper_bound(begin); it != registrations_.begin();) {
    --it;
    if (it->second->Holds(memory)) {
      return it->second;
    }
  }
  return nullptr;
}

const Registration* RegistrationCache::FindAnew(std::span<const std::byte> memory) {
  removals_ = table_->removals();
  last_ = table_->Find(memory);
  return last_;
}

absl::Status VerbsRegion::Enter(std::shared_ptr<const MemoryDevices> devices) {
  SHOAL_ASSIGN_OR_RETURN(registration_, Registration::Create(std::move(devices), memory_, access_));
  table_->Add(registration_.get());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Region>> VerbsRegion::Allocate(
    std::shared_ptr<RegistrationTable> table, std::shared_ptr<const MemoryDevices> devices,
    int64_t bytes, Access access) {
  if (bytes <= 0) {
    return InvalidArgument("cannot allocate a region of {} bytes", bytes);
  }
  const auto size = static_cast<size_t>(bytes);
  size_t mapped = size;
  void* memory = MAP_FAILED;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (size >= kHugeFrom) {
    // Reserved huge pages: a device's translation table then has one entry instead of 512.
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
  SHOAL_RETURN_IF_ERROR(region->Enter(std::move(devices)));
  return region;
}

absl::StatusOr<std::shared_ptr<Region>> VerbsRegion::Register(
    std::shared_ptr<RegistrationTable> table, std::shared_ptr<const MemoryDevices> devices,
    std::span<std::byte> memory, Access access) {
  if (memory.empty()) {
    return InvalidArgument("cannot register empty memory");
  }
  std::shared_ptr<VerbsRegion> region(new VerbsRegion(std::move(table), memory, 0, access));
  SHOAL_RETURN_IF_ERROR(region->Enter(std::move(devices)));
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
