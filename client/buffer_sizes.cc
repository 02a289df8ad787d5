#include "client/buffer_sizes.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/transport/data_layout.h"

namespace shoal::client {

namespace {

std::vector<BufferSizes::Wanted> WantedOf(std::span<const int64_t> counts, DType dtype,
                                          int per_size) {
  std::vector<BufferSizes::Wanted> wanted;
  for (const int64_t count : counts) {
    wanted.push_back({.bytes = count * SizeOf(dtype), .most = per_size});
  }
  return wanted;
}

}  // namespace

BufferSizes::BufferSizes(std::span<const Wanted> units) {
  std::vector<Wanted> distinct;
  for (const Wanted& unit : units) {
    if (unit.bytes == 0) {
      of_unit_.push_back(kNone);
      continue;
    }
    SHOAL_CHECK(unit.most > 0);
    const auto found = std::ranges::find(distinct, unit);
    const auto size = static_cast<size_t>(found - distinct.begin());
    if (found == distinct.end()) {
      distinct.push_back(unit);
      sizes_.push_back({.bytes = RoundUp(unit.bytes, transport::kBufferAlignment)});
    }
    sizes_[size].count = std::min(sizes_[size].count + 1, unit.most);
    of_unit_.push_back(size);
  }
}

BufferSizes::BufferSizes(std::span<const int64_t> counts, DType dtype, int per_size)
    : BufferSizes(WantedOf(counts, dtype, per_size)) {}

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
