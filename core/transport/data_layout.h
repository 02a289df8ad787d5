// Defines how weights, gradients and acknowledgements lie in exposed memory: the contract between
// servers and clients on the data path. Little-endian, fixed size, versioned by kDataLayoutVersion
// (checked at Connect). docs/wire-protocol.md shows it.
//
// Regions:
// - The server's weights region (kRemoteRead) holds for each partition a PartitionHeader, then the
//   even and the odd buffer. Each buffer is count x size of the wire type, aligned to
//   kLayoutAlignment at least. Version v lies in buffer v % 2. ConnectReply says where.
// - The server's slots region (kRemoteWrite), one per client, holds `slots` slots of slot_bytes: a
//   PushHeader and the payload. They have room for the job's largest partition, whichever of them
//   the server holds.
// - The client's acknowledgement region (kRemoteWrite) holds one PushAcknowledgement per slot.
//
// What is reserved is zero, and whoever reads it checks that: a peer that says more than this
// layout has is refused, not half understood.
//
// Either of the server's regions may be two regions of the same layout: one in GPU memory, of which
// only the buffers or payloads are used, and one on the host, of which only the headers are used.
// Headers mean the same then: the server completes a version's header when the GPU is done with the
// buffer; the client posts a header when its copy of the payload is done.
//
// Push:
// 1. The client takes a free slot (a credit), posts the payload and then the header, whose write
//    rings the doorbell with the slot's index. It keeps the gradient until acknowledged.
// 2. The server validates the header against what it granted, and applies the push or recognises it
//    as a duplicate.
// 3. The server writes the acknowledgement and rings with the slot's index.
//
// Who hears the doorbell sees all of the push. Where writes become visible in the order posted (shm
// and tcp), a whole header (header_hash tells) also means a whole payload, and the server takes a
// push whose doorbell was lost. Over RDMA it does not: a header may be in place before the payload.
// There a doorbell is lost only with its connection, and the client sends again over the next one.
// So a lost doorbell delays a push but never loses it: the server scans slots, the client
// acknowledgements (each one write), on a timer and on reconnecting.
//
// Barrier (train.synchronization: layer): only doorbells, between clients and the first server.
// - A client rings with the number of barriers of the attempt that it has reached so far.
// - When all clients have reached a barrier, the server rings each with the number of barriers
//   completed.
// - Both counts only grow and each doorbell carries the full state, so the next doorbell, or
//   ringing again, makes up for a lost one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::transport {

inline constexpr uint32_t kDataLayoutVersion = 5;
// Of headers, buffers and slots, as a peer may count on it.
inline constexpr int64_t kLayoutAlignment = 64;
// To which buffers and regions are allocated.
inline constexpr int64_t kBufferAlignment = 4096;
static_assert(kBufferAlignment % kLayoutAlignment == 0);

// Precedes each partition's buffers. A reader reads the data, then the header, and accepts the data
// as version v only if version[v % 2] == v and sequence[v % 2] is even; the server makes the
// sequence odd while it writes that buffer.
struct PartitionHeader {
  uint64_t version[2];
  uint64_t sequence[2];
  uint64_t reserved[4];
};
static_assert(sizeof(PartitionHeader) == 64);

inline constexpr uint64_t kPushMagic = 0x31485355504C4853;  // "SHLPUSH1"

// Starts a slot; the payload follows at kPushHeaderBytes.
struct PushHeader {
  uint64_t magic;
  uint64_t incarnation;  // of the worker, assigned by the coordinator
  int64_t generation;    // of the shard map
  int64_t step;
  int64_t attempt;
  // Names the contribution within the attempt, whoever sends it (core/model/contribution.h).
  int64_t key;
  int32_t partition;
  uint32_t dtype;  // shoal::DType of the payload: kF32 or kBF16
  int64_t count;   // elements: always the whole partition
  // Unique per client connection, never 0; the acknowledgement repeats it.
  uint64_t push_id;
  uint64_t payload_hash;  // push_header.h; 0: not to be checked
  uint32_t flags;         // reserved, and all after it
  uint32_t reserved[9];
  // XXH3-64 of the kPushHeaderHashedBytes before it; a header that does not match is ignored.
  uint64_t header_hash;
};
inline constexpr int64_t kPushHeaderBytes = 128;
static_assert(sizeof(PushHeader) == kPushHeaderBytes);
inline constexpr int64_t kPushHeaderHashedBytes = 120;
static_assert(offsetof(PushHeader, header_hash) == kPushHeaderHashedBytes);

// One per slot in the client's acknowledgement region. The server writes it whole, in one write.
struct PushAcknowledgement {
  uint64_t push_id;
  // An absl::StatusCode: kOk if applied (now or before), else why it was refused.
  int32_t code;
  uint32_t applied_before;  // 1: recognised as a duplicate
  uint64_t reserved[6];
};
static_assert(sizeof(PushAcknowledgement) == 64);

// Marks the doorbells of barriers; others carry a slot's index, whose upper bits are reserved.
inline constexpr uint32_t kBarrierDoorbell = 0x80000000;
inline constexpr uint32_t kBarrierCountMask = 0x00FFFFFF;
inline constexpr int kBarrierTagShift = 24;

// Distinguishes attempts that are close to each other.
constexpr uint32_t BarrierTag(int64_t step, int64_t attempt) {
  return static_cast<uint32_t>(step * 8 + attempt) & 0x7F;
}
constexpr uint32_t BarrierDoorbell(uint32_t tag, uint32_t count) {
  return kBarrierDoorbell | tag << kBarrierTagShift | (count & kBarrierCountMask);
}
constexpr bool IsBarrierDoorbell(uint32_t immediate) { return (immediate & kBarrierDoorbell) != 0; }
constexpr uint32_t BarrierTagOf(uint32_t immediate) { return immediate >> kBarrierTagShift & 0x7F; }
constexpr uint32_t BarrierCountOf(uint32_t immediate) { return immediate & kBarrierCountMask; }

}  // namespace shoal::transport
