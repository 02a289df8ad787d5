// Host memory, pinned where the GPU can, through which payloads pass between a socket and exposed
// GPU memory. Allocated on first use, once for each direction of a connection. For one thread at a
// time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "core/transport/gpu_memory.h"

namespace shoal::transport {

class TcpStaging {
 public:
  TcpStaging(std::shared_ptr<GpuMemory> gpu, size_t bytes) : gpu_(std::move(gpu)), size_(bytes) {}
  ~TcpStaging();
  TcpStaging(const TcpStaging&) = delete;
  TcpStaging& operator=(const TcpStaging&) = delete;

  // Frees what was taken before.
  void Reset() { used_ = 0; }
  // Returns host memory of that size, which must be available.
  absl::StatusOr<std::span<std::byte>> Take(size_t bytes);
  // Same as above, filled with the bytes of GPU memory.
  absl::StatusOr<std::span<const std::byte>> TakeCopy(std::span<const std::byte> from);
  // Copies what Take returned into GPU memory.
  absl::Status CopyOut(std::span<const std::byte> from, std::byte* to);

 private:
  absl::Status Copy(std::byte* to, const std::byte* from, size_t bytes);

  const std::shared_ptr<GpuMemory> gpu_;
  const size_t size_;
  std::byte* memory_ = nullptr;
  bool pinned_ = false;
  size_t used_ = 0;
};

}  // namespace shoal::transport
