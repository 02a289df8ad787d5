// Memory that processes of one machine share: memfds, so nothing has a name and a killed process
// leaves nothing behind. Sealed against growing and against shrinking (a peer that truncated one
// would kill its users with SIGBUS).
//
// The kernel also seals what peers may only read against their writes, except in a job whose
// workers compute on GPUs (TransportOptions::gpu_job). There, a client whose GPU cannot pin memory
// mapped read-only maps it a second time, for writing, and uses that mapping only as the source of
// its GPU's copies. The client's own code reads through the first, read-only mapping, and posts of
// writes are still refused; but a malicious client of the same user and host could write the
// weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/region_table.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// A mapping of a memfd.
class SharedMemory {
 public:
  // Creates zeroed memory, writable here. With peers_read_only, the kernel lets a peer that
  // receives fd() map it only for reading.
  static absl::StatusOr<SharedMemory> Create(int64_t bytes, bool peers_read_only);
  // Maps what a peer sent, after checking that it is memory sealed against shrinking, of at least
  // `bytes`.
  static absl::StatusOr<SharedMemory> Map(UniqueFd fd, int64_t bytes, bool writable);
  // Whether what a peer sent can be mapped only for reading.
  static bool SealedAgainstWriting(int fd);

  SharedMemory() = default;
  ~SharedMemory() { Unmap(); }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, size_t size)
      : fd_(std::move(fd)), data_(data), size_(size) {}
  void Unmap();

  UniqueFd fd_;  // closed once mapped if the peer made it
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A region that can be exposed to peers: shared memory, or the caller's GPU memory, which peers
// open (core/transport/gpu_memory.h).
class ShmRegion final : public Region {
 public:
  ShmRegion(std::shared_ptr<RegionTable> table, SharedMemory memory, Access access);
  ShmRegion(std::shared_ptr<RegionTable> table, std::span<std::byte> memory, const GpuShare& share,
            Access access);
  ~ShmRegion() override;
  std::span<std::byte> bytes() override { return bytes_; }
  Access access() const override { return access_; }
  // For shared memory.
  int fd() const { return memory_.fd(); }
  // For GPU memory.
  const std::optional<GpuShare>& share() const { return share_; }
  const RegionTable* table() const { return table_.get(); }

 private:
  const std::shared_ptr<RegionTable> table_;
  const SharedMemory memory_;
  const std::optional<GpuShare> share_;
  const std::span<std::byte> bytes_;
  const Access access_;
};

// A peer's region, as this process reaches it. Move-only.
class PeerRegion {
 public:
  explicit PeerRegion(SharedMemory host) : host_(std::move(host)) {}
  PeerRegion(std::shared_ptr<GpuMemory> gpu, const OpenedShare& opened)
      : gpu_(std::move(gpu)), opened_(opened) {}
  PeerRegion(PeerRegion&&) noexcept = default;
  PeerRegion& operator=(PeerRegion&&) = delete;
  ~PeerRegion();

  bool on_gpu() const { return gpu_ != nullptr; }
  std::span<std::byte> bytes() const {
    return on_gpu() ? opened_.memory : std::span(host_.data(), host_.size());
  }

 private:
  SharedMemory host_;
  std::shared_ptr<GpuMemory> gpu_;  // null: shared memory
  OpenedShare opened_;
};

}  // namespace shoal::transport
