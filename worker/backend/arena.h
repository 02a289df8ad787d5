// One reservation of memory, handed out in pieces that a step takes and frees repeatedly
// (activations, their copies on the host, messages within a stage), without allocations of the
// device. The caller says where a piece lies: a step's needs are known before it runs, and places
// planned for all of them (core/plan/memory/arena_layout.h) leave fewer holes than any found on
// the way. The arena checks the plan: no two pieces overlap, and what is in use is counted to the
// byte.
//
// A poisoned arena fills freed memory with bytes 0xFF, which are NaN in fp32 and bf16: use after
// free, or before the first write, spoils every result that it reaches.
//
// For one thread. The arena must not outlive its memory and its stream; pieces become void when the
// arena is destroyed or reserved again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/memory/range_allocator.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

class Arena {
 public:
  // An arena without poison fills nothing.
  static constexpr std::byte kPoison{0xFF};

  // `what` is for messages: "stage 1's activations". `poison`, if given, fills what is freed.
  Arena(Memory& memory, std::string what, Stream* poison = nullptr)
      : memory_(memory), what_(std::move(what)), poison_(poison) {}

  // Ensures `bytes` for the following work, say a step: the reservation grows if it is too small,
  // and otherwise stays as it is. Nothing may be in use; restarts the peak. ResourceExhausted comes
  // from the memory, and leaves the arena empty.
  absl::Status Reserve(int64_t bytes);

  // Takes `bytes` > 0 at `place`, a multiple of kBufferAlignment. ResourceExhausted if not all of
  // that is free.
  absl::StatusOr<std::byte*> Take(int64_t bytes, int64_t place);
  // Frees what Take returned. Work that still touches it must be ordered before the poison's
  // stream.
  void Give(std::byte* piece);
  // Frees everything in use, after a failure.
  void GiveAll();

  int64_t capacity() const { return buffer_.bytes(); }
  // Sum of the sizes asked for.
  int64_t used() const { return ranges_.used(); }
  int64_t peak() const { return ranges_.peak(); }  // since Reserve
  // Reservations from the memory since the arena was made.
  int64_t reservations() const { return reservations_; }

 private:
  Memory& memory_;
  const std::string what_;
  Stream* const poison_;
  Buffer buffer_;
  RangeAllocator ranges_{0, kBufferAlignment};
  int64_t reservations_ = 0;
};

}  // namespace shoal::worker
