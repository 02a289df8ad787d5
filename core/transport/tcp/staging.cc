#include "core/transport/tcp/staging.h"

#include <sys/mman.h>

#include <cerrno>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::transport {

TcpStaging::~TcpStaging() {
  if (memory_ == nullptr) {
    return;
  }
  if (pinned_) {
    gpu_->Unpin({memory_, size_});
  }
  munmap(memory_, size_);
}

absl::StatusOr<std::span<std::byte>> TcpStaging::Take(size_t bytes) {
  if (memory_ == nullptr) {
    void* const memory =
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return ErrnoToStatus(errno, "taking memory of the host between a socket and a GPU");
    }
    memory_ = static_cast<std::byte*>(memory);
    const absl::Status pinned = gpu_->Pin({memory_, size_}, /*writable=*/true);
    pinned_ = pinned.ok();
    if (!pinned_) {
      LogWarning("tcp: {} between sockets and a GPU cannot be pinned, so it copies more slowly: {}",
                 FormatBytes(static_cast<int64_t>(size_)), Message(pinned));
    }
  }
  SHOAL_CHECK(bytes <= size_ - used_);
  std::byte* const taken = memory_ + used_;
  used_ += bytes;
  return std::span(taken, bytes);
}

absl::StatusOr<std::span<const std::byte>> TcpStaging::TakeCopy(std::span<const std::byte> from) {
  SHOAL_ASSIGN_OR_RETURN(const std::span<std::byte> to, Take(from.size()));
  SHOAL_RETURN_IF_ERROR(Copy(to.data(), from.data(), from.size()));
  return to;
}

absl::Status TcpStaging::CopyOut(std::span<const std::byte> from, std::byte* to) {
  return Copy(to, from.data(), from.size());
}

absl::Status TcpStaging::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  const GpuCopy copy = {.to = to, .from = from, .bytes = static_cast<int64_t>(bytes)};
  return gpu_->Copy({&copy, 1});
}

}  // namespace shoal::transport
