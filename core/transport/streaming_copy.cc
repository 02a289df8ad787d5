#include "core/transport/streaming_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace shoal::transport {
namespace {

constexpr size_t kUsualCacheBytes = size_t{1} << 20;  // if the system does not report it

#ifdef __AVX2__
constexpr size_t kPage = 4096;  // prefetching stops at its end
constexpr size_t kPages = 4;    // copied at once
constexpr size_t kLine = 64;

void StreamLine(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* destination = reinterpret_cast<__m256i*>(to);
  const __m256i low = _mm256_loadu_si256(source);
  const __m256i high = _mm256_loadu_si256(source + 1);
  _mm256_stream_si256(destination, low);
  _mm256_stream_si256(destination + 1, high);
}

// `to` must begin a cache line, `size` be a multiple of kPages pages.
void StreamPages(std::byte* to, const std::byte* from, size_t size) {
  for (size_t group = 0; group < size; group += kPages * kPage) {
    for (size_t line = group; line < group + kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page) {
        StreamLine(to + line + page * kPage, from + line + page * kPage);
      }
    }
  }
  _mm_sfence();
}
#endif

}  // namespace

size_t StreamingCopyBytes() {
  static const size_t bytes = [] {
    const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return (cache > 0 ? static_cast<size_t>(cache) : kUsualCacheBytes) / 2;
  }();
  return bytes;
}

void StreamingCopy(std::byte* to, const std::byte* from, size_t size) {
#ifdef __AVX2__
  const size_t head = std::min((kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine, size);
  const size_t pages = (size - head) / (kPages * kPage) * (kPages * kPage);
  std::memcpy(to, from, head);
  StreamPages(to + head, from + head, pages);
  std::memcpy(to + head + pages, from + head + pages, size - head - pages);
#else
  std::memcpy(to, from, size);
#endif
}

}  // namespace shoal::transport
