// What travels on a tcp connection, as it is or in records (record.h): frames of a fixed header,
// some followed by a payload. Little-endian. docs/wire-protocol.md shows the exchange.
//
//   Hello, Welcome, Refusal   the handshake; payload: handshake bytes
//   Read     asks for `length` bytes at `offset` of `region`; `sequence` counts the reads of
//            this side, from 1
//   Data     payload: bytes of read `sequence`, the first at `offset` within that read; reads
//            are answered in order
//   Write    payload: bytes for `offset` of `region`; `sequence` counts the writes of this
//            side, from 1. kLastOfWrite: the write is complete; kRing: then rings with
//            `immediate`
//   Ack      all writes through `sequence` are in place; `offset`: the total number of
//            doorbells taken, which returns credit
//   Ping, Pong, Goodbye
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/base/bytes.h"

namespace shoal::transport {

enum class TcpFrameType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kRefusal = 3,
  kRead = 4,
  kData = 5,
  kWrite = 6,
  kAck = 7,
  kPing = 8,
  kPong = 9,
  kGoodbye = 10,
};

inline constexpr uint32_t kTcpMagic = 0x54314853;  // "SH1T"
inline constexpr uint8_t kLastOfWrite = 1;
inline constexpr uint8_t kRing = 2;

// Larger operations are split, so that acknowledgements, requests and the other direction's data
// get in between.
inline constexpr uint64_t kMaxPayloadBytes = 1 * kMiB;

struct TcpFrame {
  uint32_t magic = kTcpMagic;
  TcpFrameType type = TcpFrameType::kPing;
  uint8_t flags = 0;
  uint16_t reserved = 0;
  uint32_t region = 0;
  uint32_t immediate = 0;
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint64_t length = 0;

  bool has_payload() const {
    return type <= TcpFrameType::kRefusal || type == TcpFrameType::kData ||
           type == TcpFrameType::kWrite;
  }
};
static_assert(sizeof(TcpFrame) == 40);

// Checks magic, type, reserved bits and payload size: everything that needs no context.
absl::Status CheckFrame(const TcpFrame& frame);

}  // namespace shoal::transport
