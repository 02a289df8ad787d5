#include "server/store/page_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"

namespace shoal::server {

absl::StatusOr<PageBuffer> PageBuffer::Allocate(int64_t bytes) {
  if (bytes <= 0) {
    return PageBuffer();
  }
  const auto size = static_cast<size_t>(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted("cannot allocate {}: {}", FormatBytes(bytes), std::strerror(errno));
  }
  // Only advice: without huge pages, small ones serve.
  madvise(data, size, MADV_HUGEPAGE);
  return PageBuffer(std::span<std::byte>(static_cast<std::byte*>(data), size));
}

PageBuffer::~PageBuffer() {
  if (!memory_.empty()) {
    munmap(memory_.data(), memory_.size());
  }
}

void PageBuffer::Release(std::span<std::byte> part) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t before = -reinterpret_cast<uintptr_t>(part.data()) % page;
  if (before < part.size()) {
    madvise(part.data() + before, (part.size() - before) / page * page, MADV_DONTNEED);
  }
}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

}  // namespace shoal::server
