// How weights, gradients and acknowledgements lie in exposed memory: the contract between servers
// and clients on the data path. Little-endian, fixed size, versioned by kDataLayoutVersion (checked
// at Connect). docs/wire-protocol.md shows it.
//
// - Server's weights region (kRemoteRead), for each partition: a PartitionHeader, then the even and
//   the odd buffer, each count x size of the wire type, each aligned to kBufferAlignment. Version v
//   lies in buffer v % 2. ConnectReply says where.
// - Server's slots region (kRemoteWrite), one per client: `slots` slots of slot_bytes: a PushHeader
//   and the payload.
// - Client's acknowledgement region (kRemoteWrite): one PushAcknowledgement per slot.
//
// Either of the server's may be two regions of one layout: one in GPU memory with the buffers or
// the payloads, and one on the host with the headers, which processors look at. What lies in the
// other place is used in neither. Headers say the same then: the server makes a version's header
// whole when the GPU is done with the buffer, and the client posts a header when its copy of the
// payload is done.
//
// Push: the client takes a free slot (a credit), posts the payload and after it the header, whose
// write rings the doorbell with the slot's index, and keeps the gradient until acknowledged. Since
// writes of a connection become visible in the order posted, a whole header (header_hash tells)
// means a whole payload, so the server may take a push whose doorbell was lost. The server
// validates the header against what it granted, applies the push or recognises it as applied
// already, writes the acknowledgement and rings with the slot's index. A lost doorbell delays a
// push but never loses it: both sides look over slots and acknowledgements again on a timer and on
// reconnecting.
//
// Meeting (train.synchronization: layer): doorbells alone, between clients and the first server. A
// client rings with how many meetings of the attempt it has come to so far; when all have come to a
// meeting, the server rings each with how many are over. Both counts only grow and each doorbell
// says all there is to say, so a lost one is made good by the next, or by ringing again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::transport {

inline constexpr uint32_t kDataLayoutVersion = 3;
inline constexpr int64_t kBufferAlignment = 4096;

// Before each partition's buffers. A reader reads the data, then the header, and takes the data for
// version v only if version[v % 2] == v and sequence[v % 2] is even; the server makes it odd while
// it writes that buffer.
struct PartitionHeader {
  uint64_t version[2];
  uint64_t sequence[2];
  uint64_t reserved[4];
};
static_assert(sizeof(PartitionHeader) == 64);

inline constexpr uint64_t kPushMagic = 0x31485355504C4853;  // "SHLPUSH1"

// At the start of a slot; the payload follows at kPushHeaderBytes.
struct PushHeader {
  uint64_t magic;
  uint64_t incarnation;  // of the worker, given by the coordinator
  int64_t generation;    // of the shard map
  int64_t step;
  int64_t attempt;
  // The k-th push of this partition by this worker in this attempt, from 1.
  int64_t sequence;
  int32_t partition;
  uint32_t dtype;  // shoal::DType of the payload: kF32 or kBF16
  int64_t count;   // elements: the whole partition
  // Unique per client connection, never 0; what the acknowledgement repeats.
  uint64_t push_id;
  // XXH3-64 of the kPushHeaderHashedBytes before it; a header with another value is not taken.
  uint64_t header_hash;
  uint64_t reserved[6];
};
inline constexpr int64_t kPushHeaderBytes = 128;
static_assert(sizeof(PushHeader) == kPushHeaderBytes);
inline constexpr int64_t kPushHeaderHashedBytes = 72;
static_assert(offsetof(PushHeader, header_hash) == kPushHeaderHashedBytes);

// One per slot in the client's acknowledgement region. Written whole by the server, in one write.
struct PushAcknowledgement {
  uint64_t push_id;
  // Absl::StatusCode: kOk applied (now or before), else why it was refused.
  int32_t code;
  uint32_t applied_before;  // 1: recognised as a duplicate
  uint64_t reserved[6];
};
static_assert(sizeof(PushAcknowledgement) == 64);

// Of a meeting's doorbells; others carry a slot's index, which is far below.
inline constexpr uint32_t kMeetingDoorbell = 0x80000000;
inline constexpr uint32_t kMeetingCountMask = 0x00FFFFFF;
inline constexpr int kMeetingTagShift = 24;

// Tells attempts near each other apart.
constexpr uint32_t MeetingTag(int64_t step, int64_t attempt) {
  return static_cast<uint32_t>(step * 8 + attempt) & 0x7F;
}
constexpr uint32_t MeetingDoorbell(uint32_t tag, uint32_t count) {
  return kMeetingDoorbell | tag << kMeetingTagShift | (count & kMeetingCountMask);
}
constexpr bool IsMeetingDoorbell(uint32_t immediate) { return (immediate & kMeetingDoorbell) != 0; }
constexpr uint32_t MeetingTagOf(uint32_t immediate) { return immediate >> kMeetingTagShift & 0x7F; }
constexpr uint32_t MeetingCountOf(uint32_t immediate) { return immediate & kMeetingCountMask; }

}  // namespace shoal::transport
