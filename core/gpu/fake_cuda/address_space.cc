#include "core/gpu/fake_cuda/address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal::gpu::fake_cuda {
namespace {

constexpr int64_t kPageBytes = 4096;
// A file of 0xFF. New memory is mapped to it piece by piece, and becomes real where it is written.
constexpr int64_t kPoisonBytes = int64_t{16} << 20;

int PoisonFile() {
  static const int file = [] {
    const int memory_file = memfd_create("poison", MFD_CLOEXEC);
    SHOAL_CHECK(memory_file >= 0);
    const std::vector<std::byte> poison(kPoisonBytes, std::byte{0xFF});
    SHOAL_CHECK(write(memory_file, poison.data(), poison.size()) == kPoisonBytes);
    return memory_file;
  }();
  return file;
}

// [begin, begin + bytes): whole pages of mapped memory.
bool MapPoison(std::byte* begin, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kPoisonBytes) {
    if (mmap(begin + done, static_cast<size_t>(std::min(kPoisonBytes, bytes - done)),
             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, PoisonFile(),
             0) == MAP_FAILED) {
      return false;
    }
  }
  return true;
}

}  // namespace

AddressSpace::~AddressSpace() {
  for (const auto& [data, range] : ranges_) {
    if (range.mapping != nullptr) {
      munmap(range.mapping, static_cast<size_t>(range.mapped_bytes));
    }
  }
}

std::byte* AddressSpace::Allocate(Place place, int device, int64_t bytes, unsigned flags,
                                  bool backed) {
  const int64_t inner = RoundUp(bytes, kAlignment);
  const int64_t pages = RoundUp(inner, kPageBytes);
  void* mapping = mmap(nullptr, static_cast<size_t>(pages + kPageBytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return nullptr;
  }
  auto* begin = static_cast<std::byte*>(mapping);
  if (backed && !MapPoison(begin, pages)) {
    munmap(mapping, static_cast<size_t>(pages + kPageBytes));
    return nullptr;
  }
  std::byte* data = begin + (pages - inner);
  const Range range{.place = place,
                    .device = device,
                    .bytes = bytes,
                    .mapping = mapping,
                    .mapped_bytes = pages + kPageBytes,
                    .flags = flags,
                    .number = next_number_++};
  ranges_.emplace(data, range);
  Protect(range);
  return data;
}

void AddressSpace::Register(void* data, int64_t bytes, unsigned flags) {
  ranges_.emplace(static_cast<std::byte*>(data),
                  Range{.place = Place::kPinned, .bytes = bytes, .flags = flags});
}

const AddressSpace::Range* AddressSpace::FindBegin(const void* data) const {
  const auto found = ranges_.find(static_cast<std::byte*>(const_cast<void*>(data)));
  return found == ranges_.end() ? nullptr : &found->second;
}

bool AddressSpace::Free(void* data, Place place) {
  const auto found = ranges_.find(static_cast<std::byte*>(data));
  if (found == ranges_.end() || found->second.place != place || found->second.mapping == nullptr ||
      found->second.opened > 0) {
    return false;
  }
  munmap(found->second.mapping, static_cast<size_t>(found->second.mapped_bytes));
  ranges_.erase(found);
  return true;
}

bool AddressSpace::Unregister(void* data) {
  const auto found = ranges_.find(static_cast<std::byte*>(data));
  if (found == ranges_.end() || found->second.mapping != nullptr) {
    return false;
  }
  ranges_.erase(found);
  return true;
}

std::byte* AddressSpace::OpenHandle(uint64_t number) {
  for (auto& [data, range] : ranges_) {
    if (range.place == Place::kDevice && range.number == number) {
      ++range.opened;
      return data;
    }
  }
  return nullptr;
}

bool AddressSpace::CloseHandle(void* data) {
  const auto found = ranges_.find(static_cast<std::byte*>(data));
  if (found == ranges_.end() || found->second.opened == 0) {
    return false;
  }
  --found->second.opened;
  return true;
}

const AddressSpace::Range* AddressSpace::Find(const void* data, int64_t bytes, bool& torn,
                                              std::byte** begin_of) const {
  torn = false;
  auto* begin = static_cast<std::byte*>(const_cast<void*>(data));
  auto after = ranges_.upper_bound(begin);
  const bool next_overlaps = after != ranges_.end() && after->first < begin + bytes;
  if (after == ranges_.begin()) {
    torn = next_overlaps;
    return nullptr;
  }
  const auto& [first, range] = *--after;
  if (begin >= first + range.bytes) {
    torn = next_overlaps;
    return nullptr;
  }
  torn = begin + bytes > first + range.bytes;
  if (begin_of != nullptr) {
    *begin_of = first;
  }
  return &range;
}

void AddressSpace::Open(int device) {
  if (device == open_) {
    return;
  }
  open_ = device;
  for (const auto& [data, range] : ranges_) {
    Protect(range);
  }
}

void AddressSpace::Protect(const Range& range) const {
  if (range.place != Place::kDevice) {
    return;
  }
  const bool open = open_ == kAll || open_ == range.device;
  SHOAL_CHECK(mprotect(range.mapping, static_cast<size_t>(range.mapped_bytes - kPageBytes),
                       open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

std::string AddressSpace::Describe(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const auto& [data, range] : ranges_) {
    const auto* begin = static_cast<const std::byte*>(range.mapping);
    if (begin == nullptr || byte < begin || byte >= begin + range.mapped_bytes) {
      continue;
    }
    const char* whose = range.place == Place::kDevice ? "a GPU" : "the host, pinned";
    const int64_t offset = byte - data;
    if (offset >= range.bytes) {
      return fmt::format("{} B behind the {} B at {} of {}", offset - range.bytes, range.bytes,
                         fmt::ptr(data), whose);
    }
    return fmt::format("{} B into the {} B at {} of {}", offset, range.bytes, fmt::ptr(data),
                       whose);
  }
  return "not memory that the runtime has given out";
}

int64_t AddressSpace::allocated_bytes(int device) const {
  int64_t sum = 0;
  for (const auto& [data, range] : ranges_) {
    if (range.place == Place::kDevice && range.device == device) {
      sum += RoundUp(range.bytes, kAlignment);
    }
  }
  return sum;
}

int64_t AddressSpace::host_bytes() const {
  int64_t sum = 0;
  for (const auto& [data, range] : ranges_) {
    if (range.place == Place::kPinned) {
      sum += range.bytes;
    }
  }
  return sum;
}

}  // namespace shoal::gpu::fake_cuda
