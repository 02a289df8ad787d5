// The memory of a stage's messages with one neighbour, as a transport knows it (link_layout.h): the
// slots that the neighbour writes into and the buffers that this stage's messages are made in. It
// lies in memory of the host, or, where stages reach each other's devices, in that of the device,
// and then headers have memory of their own on the host.
//
// Slots on a device are an allocation that the neighbour opens (lent_memory.h). They go when the
// transport has let go of them, which may be after these regions; everything else goes with them,
// so they outlive the connection.
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

// Of what a connection exposes.
inline constexpr int kSlotsRegion = 0;
inline constexpr int kSlotHeadersRegion = 1;  // where headers lie apart

class LinkRegions {
 public:
  struct Options {
    transport::Transport* transport = nullptr;
    LinkRoom slots;
    LinkRoom buffers;
    // In whose memory messages are to lie, and what counts that of it which the neighbour opens.
    // Null: in that of the host,
    Device* device = nullptr;
    LentMemory* lent = nullptr;
    // from here, as far as the transport can use memory that it did not allocate: for a device
    // whose copies reach that memory at full speed. Null: in the transport's own.
    Memory* host = nullptr;
  };
  static absl::StatusOr<LinkRegions> Create(const Options& options);

  std::vector<std::shared_ptr<transport::Region>> exposed() const;
  PieceMemory slots() const { return MemoryOf(slots_, slot_headers_); }
  PieceMemory buffers() const { return MemoryOf(buffers_, buffer_headers_); }
  // Whether there is room for that, laid out in any way.
  bool HasRoomFor(const LinkRoom& slots, const LinkRoom& buffers) const;
  const LinkRoom& slot_room() const { return slot_room_; }
  const LinkRoom& buffer_room() const { return buffer_room_; }

 private:
  using Region = std::shared_ptr<transport::Region>;
  static PieceMemory MemoryOf(const Region& pieces, const Region& headers) {
    return {.pieces = pieces->bytes().data(),
            .headers = headers == nullptr ? nullptr : headers->bytes().data()};
  }

  LinkRoom slot_room_;
  LinkRoom buffer_room_;
  Buffer slot_memory_;  // goes after the regions, as that of buffers does
  Buffer buffer_memory_;
  Region slots_;  // exposed to the neighbour
  Region slot_headers_;
  Region buffers_;
  Region buffer_headers_;
};

}  // namespace shoal::worker
