// The memory that two ends of a shm connection share: a doorbell ring and a gate for each
// direction.
//
// Nothing read from it is trusted: each side keeps its own counters, takes the peer's only as a
// hint of progress, and breaks the connection if they are impossible. Ring indices are masked, so
// no value from the peer leads outside the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/transport/handshake.h"

namespace shoal::transport {

// One direction: from the poster to the owner of the memory that the poster reads and writes.
struct ShmDirection {
  alignas(64) uint64_t rung;     // doorbells rung so far; written by the poster
  alignas(64) uint64_t taken;    // doorbells taken so far; written by the owner
  alignas(64) uint32_t copying;  // the poster is within the owner's memory
  alignas(64) uint32_t closed;   // the owner lets nobody into its memory any more
  alignas(64) uint32_t ring[kMaxWaitingDoorbells];
};

struct ShmControl {
  ShmDirection from_connector;
  ShmDirection from_acceptor;
};
static_assert((kMaxWaitingDoorbells & (kMaxWaitingDoorbells - 1)) == 0);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

// The poster's end. For one thread at a time.
class DoorbellSender {
 public:
  explicit DoorbellSender(ShmDirection* direction) : direction_(direction) {}
  // Returns the number of free places. DataLoss if the peer's counter is impossible.
  absl::StatusOr<int64_t> Room() const;
  // Needs room. The peer that takes the doorbell sees all writes made before it.
  void Ring(uint32_t immediate);

 private:
  ShmDirection* const direction_;
  uint64_t rung_ = 0;
};

// The owner's end. For one thread at a time.
class DoorbellReceiver {
 public:
  explicit DoorbellReceiver(ShmDirection* direction) : direction_(direction) {}
  bool Waiting() const;
  // Returns the next doorbell, if any. DataLoss if the peer's counter is impossible.
  absl::StatusOr<std::optional<uint32_t>> Take();

 private:
  ShmDirection* const direction_;
  uint64_t taken_ = 0;
};

// Poster: copies to or from the owner's memory happen between a successful Enter() and Leave(), and
// are short.
class Gate {
 public:
  explicit Gate(ShmDirection* direction) : direction_(direction) {}
  bool Enter();
  void Leave();
  // Owner: admits nobody from now on and waits until nobody is inside. False if the poster is still
  // inside after `patience`: it was stopped in the middle of a copy (or lies).
  bool CloseAndWait(absl::Duration patience);

 private:
  ShmDirection* const direction_;
};

}  // namespace shoal::transport
