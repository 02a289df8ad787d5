// Counts and sizes of buffers for whole units: up to a number of each distinct unit size, never
// more than there are units of that size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"

namespace shoal::client {

class BufferSizes {
 public:
  struct Size {
    int64_t bytes = 0;  // per buffer; a multiple of transport::kBufferAlignment
    int count = 0;
  };

  // Of one unit; of no bytes: it has none. Units with the same share their buffers.
  struct Wanted {
    int64_t bytes = 0;
    int most = 0;  // of the size, > 0
    bool operator==(const Wanted&) const = default;
  };

  BufferSizes() = default;  // none
  explicit BufferSizes(std::span<const Wanted> units);
  // `counts`: elements by unit; a unit with 0 has none. `per_size` > 0.
  BufferSizes(std::span<const int64_t> counts, DType dtype, int per_size);

  const std::vector<Size>& sizes() const { return sizes_; }
  bool has(int unit) const { return of_unit_[static_cast<size_t>(unit)] != kNone; }
  // Returns the index in sizes() of a unit that has one.
  size_t of(int unit) const;
  int64_t total_bytes() const;

 private:
  static constexpr size_t kNone = ~size_t{0};
  std::vector<Size> sizes_;
  std::vector<size_t> of_unit_;
};

}  // namespace shoal::client
