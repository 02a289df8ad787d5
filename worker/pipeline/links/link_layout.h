// How messages between two stages lie in memory and what their doorbells say: the contract between
// the two ends of a connection (transport_links.h). Little-endian, fixed size.
//
// - Each side exposes one region of slots to the other. The slots of a step follow from its
//   schedule, which both sides have: first those of the queue of activations, then those of
//   gradients, each slot as long as a header and the longest message of the step.
// - A slot holds a StageMessageHeader and the message after it, written in one write whose doorbell
//   says queue, number and slot.
// - The receiver tells the sender by a doorbell without data that it has posted a receive, and for
//   which slot.
// - Messages and receives of a queue are numbered in order, from 0 when the connection is made, so
//   that each end knows which comes next.
//
// If messages lie in memory of devices, headers lie in a second region, on the host: one for each
// slot, in the order of the slots. A message is then two writes; the header's comes second and has
// the doorbell. The room for a header in the slot stays empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/schedule/schedule_queues.h"

namespace shoal::worker {

inline constexpr uint64_t kStageMessageMagic = 0x3147415453484C53;  // "SLHSTAG1"

struct StageMessageHeader {
  uint64_t magic;
  int64_t step;
  int64_t attempt;
  int64_t bytes;  // of the message after it
  int32_t chunk;  // the receiver's
  int32_t microbatch;
  uint32_t gradient;  // 1: of the chunk's output
  uint32_t number;    // in its queue
  uint64_t hash;      // XXH3-64 of the fields before it
  uint64_t reserved;
};
inline constexpr int64_t kStageMessageHeaderBytes = 64;
static_assert(sizeof(StageMessageHeader) == kStageMessageHeaderBytes);
static_assert(offsetof(StageMessageHeader, hash) == 48);

void Seal(StageMessageHeader& header);
bool IsWhole(const StageMessageHeader& header);

struct LinkDoorbell {
  enum class Kind : uint32_t {
    kHello,    // the connection is complete: what was refused so far may be posted
    kReceive,  // a receive is posted
    kMessage,  // a message is in its slot
  };
  Kind kind = Kind::kHello;
  bool gradients = false;
  uint32_t number = 0;  // its low bits
  uint32_t slot = 0;

  bool operator==(const LinkDoorbell&) const = default;
};
inline constexpr uint32_t kLinkNumbers = 1 << 13;
inline constexpr uint32_t kMaxLinkSlots = 1 << 16;  // of a queue

uint32_t Encode(const LinkDoorbell& doorbell);
LinkDoorbell DecodeDoorbell(uint32_t immediate);

// Buffers of a region, all of the same length.
struct BufferLayout {
  int64_t first = 0;  // pieces of the region before these
  int64_t stride = 0;
  int64_t count = 0;

  int64_t OffsetOf(int64_t piece) const { return (first + piece) * stride; }
  // For a region that holds only headers.
  int64_t HeaderOffsetOf(int64_t piece) const { return (first + piece) * kStageMessageHeaderBytes; }
};

// A region of buffers, which may hold more of them if they are shorter.
struct LinkCapacity {
  int64_t bytes = 0;
  int64_t pieces = 0;  // headers that there is room for if they lie separately

  bool Covers(const LinkCapacity& needed) const {
    return bytes >= needed.bytes && pieces >= needed.pieces;
  }
};

// For the messages from one stage to another: the slots at the receiver and the buffers at the
// sender, [0] of activations, [1] of gradients.
struct LinkLayout {
  BufferLayout slots[2];
  BufferLayout buffers[2];

  LinkCapacity slot_capacity() const { return CapacityOf(slots); }
  LinkCapacity buffer_capacity() const { return CapacityOf(buffers); }

 private:
  static LinkCapacity CapacityOf(const BufferLayout (&pieces)[2]) {
    const int64_t count = pieces[0].count + pieces[1].count;
    return {.bytes = pieces[0].stride * count, .pieces = count};
  }
};
LinkLayout LayOut(std::span<const plan::MessageQueue> queues, int from, int to,
                  int64_t longest_message);

}  // namespace shoal::worker
