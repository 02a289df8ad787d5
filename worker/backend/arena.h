// One reservation of memory, handed out in pieces: what a step takes and gives back over and over
// (activations, their copies on the host, messages within a stage) without an allocation of the
// device. Who takes a piece says where it is to lie: what a step takes is known before it runs, and
// places that are planned for all of it (core/plan/memory/memory_places.h) leave fewer holes than
// any found on the way. The arena holds them to it: no two pieces overlap, and what is in use is
// counted to the byte.
//
// Poisoned, memory that is given back is filled with bytes 0xFF, which are NaN in fp32 and bf16:
// what is used after it was given back, or before it was written, spoils every result that it
// reaches.
//
// One thread. The arena must not outlive its memory and its stream; pieces are void when the arena
// goes or is reserved anew.
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
  // Of an arena that is not poisoned nothing is filled.
  static constexpr std::byte kPoison{0xFF};

  // `what` for messages: "stage 1's activations". `poison`, where given, fills what is given back.
  Arena(Memory& memory, std::string what, Stream* poison = nullptr)
      : memory_(memory), what_(std::move(what)), poison_(poison) {}

  // Makes sure of `bytes` for what comes, a step say: the reservation grows where it is too small,
  // and stays as it is otherwise. Nothing may be in use; the peak counts from here.
  // ResourceExhausted of the memory, and the arena is then empty.
  absl::Status Reserve(int64_t bytes);

  // `bytes` > 0 from `place`, a multiple of kBufferAlignment. ResourceExhausted where not all of
  // that is free.
  absl::StatusOr<std::byte*> Take(int64_t bytes, int64_t place);
  // What Take gave. Work that still touches it is ordered before the poison's stream.
  void Give(std::byte* piece);
  // All that is in use, after a failure.
  void GiveAll();

  int64_t capacity() const { return buffer_.bytes(); }
  // Sums of the sizes asked for.
  int64_t used() const { return ranges_.used(); }
  int64_t peak() const { return ranges_.peak(); }  // since Reserve
  // Of the memory, since the arena was made.
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
