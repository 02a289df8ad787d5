// The memory two ends of a shm connection share: a doorbell ring and a gate for each direction.
//
// Nothing read from it is trusted: each side keeps its own counters, takes the peer's only as a
// hint of progress, and breaks the connection if they are impossible. Ring indices are masked, so
// no value of the peer's leads outside the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/transport/handshake.h"

namespace shoal::transport {

// From one side, the poster, to the other, the owner of the memory that is read and written.
struct ShmDirection {
  alignas(64) uint64_t rung;     // doorbells ever rung; the poster writes it
  alignas(64) uint64_t taken;    // doorbells ever taken; the owner writes it
  alignas(64) uint32_t copying;  // the poster is within the owner's memory
  alignas(64) uint32_t closed;   // the owner wants nobody within its memory any more
  alignas(64) uint32_t ring[kMaxWaitingDoorbells];
};

struct ShmControl {
  ShmDirection from_connector;
  ShmDirection from_acceptor;
};
static_assert((kMaxWaitingDoorbells & (kMaxWaitingDoorbells - 1)) == 0);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

// The poster's end. One thread at a time.
class DoorbellSender {
 public:
  explicit DoorbellSender(ShmDirection* direction) : direction_(direction) {}
  // Free places. DataLoss if the peer's counter is impossible.
  absl::StatusOr<int64_t> Room() const;
  // There must be room. All writes before it are visible to who takes it.
  void Ring(uint32_t immediate);

 private:
  ShmDirection* const direction_;
  uint64_t rung_ = 0;
};

// The owner's end. One thread at a time.
class DoorbellReceiver {
 public:
  explicit DoorbellReceiver(ShmDirection* direction) : direction_(direction) {}
  bool Waiting() const;
  // The next doorbell, if there is one. DataLoss if the peer's counter is impossible.
  absl::StatusOr<std::optional<uint32_t>> Take();

 private:
  ShmDirection* const direction_;
  uint64_t taken_ = 0;
};

// Poster: copies within the owner's memory happen between a true Enter() and Leave(), and are
// short.
class Gate {
 public:
  explicit Gate(ShmDirection* direction) : direction_(direction) {}
  bool Enter();
  void Leave();
  // Owner: lets nobody in from now on and waits until nobody is within. False if the poster is
  // still within at the end of `patience`: it was stopped in the middle of a copy (or lies).
  bool CloseAndWait(absl::Duration patience);

 private:
  ShmDirection* const direction_;
};

}  // namespace shoal::transport
