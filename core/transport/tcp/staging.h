// Memory of the host, pinned where the GPU can, through which payloads pass on their way between a
// socket and a GPU's memory that is exposed. It is made when it is first needed, once for each
// direction of a connection. One thread at a time.
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

  // What was taken before is not needed any more.
  void Reset() { used_ = 0; }
  // Memory of the host of that size, which must be left.
  absl::StatusOr<std::span<std::byte>> Take(size_t bytes);
  // The same with the bytes of a GPU's memory.
  absl::StatusOr<std::span<const std::byte>> TakeCopy(std::span<const std::byte> from);
  // Of what Take gave, into a GPU's memory.
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
