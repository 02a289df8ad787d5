#include "core/transport/shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"

namespace shoal::transport {

absl::StatusOr<SharedMemory> SharedMemory::Create(int64_t bytes, bool peers_read_only) {
  if (bytes <= 0) {
    return InvalidArgument("cannot allocate a region of {} bytes", bytes);
  }
  UniqueFd fd(memfd_create("shoal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), bytes) != 0) {
    return ErrnoToStatus(errno, fmt::format("making {} of shared memory", FormatBytes(bytes)));
  }
  const size_t size = static_cast<size_t>(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoToStatus(errno, fmt::format("mapping {} of shared memory", FormatBytes(bytes)));
  }
  SharedMemory memory(std::move(fd), static_cast<std::byte*>(data), size);
  // Only mappings made after F_SEAL_FUTURE_WRITE are read-only: ours, above, stays writable.
  const int seals =
      F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (peers_read_only ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(memory.fd(), F_ADD_SEALS, seals) != 0) {
    return ErrnoToStatus(errno, "sealing shared memory (this needs Linux 5.1)");
  }
  if (bytes >= 2 * kMiB) {
    madvise(data, size, MADV_HUGEPAGE);  // a hint; it may be refused
  }
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(UniqueFd fd, int64_t bytes, bool writable) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument("what the peer sent is not sealed shared memory");
  }
  struct stat file = {};
  if (fstat(fd.get(), &file) != 0 || file.st_size < bytes || bytes <= 0) {
    return InvalidArgument("the peer's shared memory is smaller than the {} bytes it announced",
                           bytes);
  }
  const size_t size = static_cast<size_t>(bytes);
  void* data =
      mmap(nullptr, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoToStatus(errno, fmt::format("mapping {} of a peer's memory", FormatBytes(bytes)));
  }
  if (bytes >= 2 * kMiB) {
    madvise(data, size, MADV_HUGEPAGE);
  }
  return SharedMemory(UniqueFd(), static_cast<std::byte*>(data), size);
}

bool SharedMemory::SealedAgainstWriting(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void SharedMemory::Unmap() {
  if (data_ != nullptr) {
    munmap(data_, size_);
    data_ = nullptr;
  }
}

ShmRegion::ShmRegion(std::shared_ptr<RegionTable> table, SharedMemory memory, Access access)
    : table_(std::move(table)),
      memory_(std::move(memory)),
      bytes_(memory_.data(), memory_.size()),
      access_(access) {
  table_->Add(bytes_);
}

ShmRegion::ShmRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory,
                     const GpuShare& share, Access access)
    : table_(std::move(table)), share_(share), bytes_(memory), access_(access) {
  table_->Add(bytes_, Residence::kGpu);
}

ShmRegion::~ShmRegion() { table_->Remove(bytes_); }

PeerRegion::~PeerRegion() {
  if (gpu_ != nullptr) {  // not moved from
    gpu_->Close(opened_);
  }
}

}  // namespace shoal::transport
