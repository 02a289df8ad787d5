#include "client/buffer_sizes.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/transport/data_layout.h"

namespace shoal::client {

BufferSizes::BufferSizes(std::span<const int64_t> counts, DType dtype, int per_size) {
  SHOAL_CHECK(per_size > 0);
  std::vector<int64_t> distinct;
  for (const int64_t count : counts) {
    if (count == 0) {
      of_unit_.push_back(kNone);
      continue;
    }
    const auto found = std::ranges::find(distinct, count);
    const auto size = static_cast<size_t>(found - distinct.begin());
    if (found == distinct.end()) {
      distinct.push_back(count);
      sizes_.push_back({.bytes = RoundUp(count * SizeOf(dtype), transport::kBufferAlignment)});
    }
    sizes_[size].count = std::min(sizes_[size].count + 1, per_size);
    of_unit_.push_back(size);
  }
}

size_t BufferSizes::of(int unit) const {
  SHOAL_CHECK(has(unit));
  return of_unit_[static_cast<size_t>(unit)];
}

int64_t BufferSizes::total_bytes() const {
  int64_t total = 0;
  for (const Size& size : sizes_) {
    total += size.count * size.bytes;
  }
  return total;
}

}  // namespace shoal::client
