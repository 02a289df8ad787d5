// The memory of a stage's messages with one neighbour, as a transport knows it (link_layout.h): the
// slots that the neighbour writes into and the buffers in which this stage's messages are made. It
// lies in host memory or, if stages reach each other's devices, in the device's; headers then have
// their own memory on the host.
//
// Slots on a device are an allocation that the neighbour opens (lent_memory.h). They are freed when
// the transport has released them, perhaps after these regions; everything else is freed with the
// regions, so they must outlive the connection.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/transport.h"
#include "worker/backend/backend.h"
#include "worker/pipeline/links/lent_memory.h"
#include "worker/pipeline/links/link_layout.h"
#include "worker/pipeline/links/link_queues.h"

namespace shoal::worker {

// Indices of what a connection exposes.
inline constexpr int kSlotsRegion = 0;
inline constexpr int kSlotHeadersRegion = 1;  // if headers lie separately

class LinkRegions {
 public:
  struct Options {
    transport::Transport* transport = nullptr;
    LinkCapacity slots;
    LinkCapacity buffers;
    // In whose memory messages lie, and what counts the part of it that the neighbour opens. Null:
    // host memory,
    Device* device = nullptr;
    LentMemory* lent = nullptr;
    // from here, as far as the transport can use memory that it did not allocate: for a device
    // whose copies reach that memory at full speed. Null: the transport's own.
    Memory* host = nullptr;
  };
  static absl::StatusOr<LinkRegions> Create(const Options& options);

  std::vector<std::shared_ptr<transport::Region>> exposed() const;
  BufferMemory slots() const { return MemoryOf(slots_, slot_headers_); }
  BufferMemory buffers() const { return MemoryOf(buffers_, buffer_headers_); }
  // Whether there is room for that, in any layout.
  bool HasCapacityFor(const LinkCapacity& slots, const LinkCapacity& buffers) const;
  const LinkCapacity& slot_capacity() const { return slot_capacity_; }
  const LinkCapacity& buffer_capacity() const { return buffer_capacity_; }

 private:
  using Region = std::shared_ptr<transport::Region>;
  static BufferMemory MemoryOf(const Region& pieces, const Region& headers) {
    return {.pieces = pieces->bytes().data(),
            .headers = headers == nullptr ? nullptr : headers->bytes().data()};
  }

  LinkCapacity slot_capacity_;
  LinkCapacity buffer_capacity_;
  Buffer slot_memory_;  // destroyed after the regions, as the memory of buffers is
  Buffer buffer_memory_;
  Region slots_;  // exposed to the neighbour
  Region slot_headers_;
  Region buffers_;
  Region buffer_headers_;
};

}  // namespace shoal::worker
