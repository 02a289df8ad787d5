// Reads of words in exposed memory that a peer may be writing at the same time: headers and
// acknowledgements. The words themselves make such a read safe (a hash, an id seen twice), and a
// fence keeps the data that they vouch for from being read before them.
//
// ThreadSanitizer can neither see that nor understand fences. So it does not instrument the copy,
// and where the writer is a thread of this process (tcp receives into exposed memory) it is told
// that the words publish what was written before them.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __SANITIZE_THREAD__
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace shoal::transport {

// Call when the data that the words at `address` end or vouch for is in place.
inline void PublishShared([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(address);
#endif
}

// Returns a copy that may be torn; only the words' contents tell whether it is whole.
template <typename Words>
__attribute__((no_sanitize("thread"), noinline)) Words CopyShared(const std::byte* from) {
  static_assert(sizeof(Words) % sizeof(uint64_t) == 0);
  struct Copy {
    uint64_t words[sizeof(Words) / sizeof(uint64_t)];
  } copy;
  const auto* words = reinterpret_cast<const volatile uint64_t*>(from);
  for (size_t i = 0; i < std::size(copy.words); ++i) {
    copy.words[i] = words[i];
  }
  std::atomic_thread_fence(std::memory_order_acquire);
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(const_cast<std::byte*>(from));
#endif
  return std::bit_cast<Words>(copy);
}

}  // namespace shoal::transport
