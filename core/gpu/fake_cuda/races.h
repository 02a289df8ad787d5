// Builds with ThreadSanitizer check kernels for races: each thread of a block is a fiber that the
// sanitizer knows, and it is told exactly what a GPU orders:
//
//   SyncBlock and SyncWarp    what threads did before arriving is ordered before what they do
//                             afterwards
//   start and end of a block  ordered after earlier blocks (so races between blocks are not found)
//   shuffles, LoadMatrix and  nothing: CUDA promises no order of memory for them
//   MultiplyAdd
//
// The fake's own code is not instrumented and reports what it reads and writes on behalf of a
// thread. Other builds do none of this. Only the fake includes it.
#pragma once

#include <cstddef>

#ifdef SHOAL_FINDS_RACES
#include <sanitizer/tsan_interface.h>

extern "C" {
// Instrumented code calls these for accesses of any size.
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

namespace shoal::gpu::fake_cuda {

#ifdef SHOAL_FINDS_RACES
inline constexpr bool kFindsRaces = true;
inline void Reads(const void* from, size_t bytes) {
  __tsan_read_range(const_cast<void*>(from), bytes);
}
inline void Writes(void* to, size_t bytes) { __tsan_write_range(to, bytes); }
#else
inline constexpr bool kFindsRaces = false;
inline void Reads(const void*, size_t) {}
inline void Writes(void*, size_t) {}
#endif

// Where threads wait for each other repeatedly: what all did before arriving is ordered before what
// each does after leaving. A thread may arrive for the next time while others have yet to leave.
class ThreadBarrier {
 public:
  // Pass the result to Leave.
  const void* Arrive() {
    const void* const turn = &turns_[turn_];
#ifdef SHOAL_FINDS_RACES
    __tsan_release(const_cast<void*>(turn));
#endif
    return turn;
  }
  // Call when all have arrived.
  void Turn() { turn_ = 1 - turn_; }
  static void Leave([[maybe_unused]] const void* turn) {
#ifdef SHOAL_FINDS_RACES
    __tsan_acquire(const_cast<void*>(turn));
#endif
  }

 private:
  size_t turn_ = 0;
  char turns_[2][8] = {};  // addresses for the sanitizer
};

}  // namespace shoal::gpu::fake_cuda
