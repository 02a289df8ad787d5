// Allocates ranges of [0, capacity), at an offset of the caller's choice or in the smallest hole
// that is large enough. Only numbers, no memory: an arena hands out pointers by it, and a caller
// that knows beforehand what will be taken and freed in which order learns from it how large the
// arena must be.
//
// The hole that reaches the end of the arena is used last, however well it fits. So offsets do not
// depend on the capacity: the same calls over any two sufficient capacities give the same offsets,
// and the highest end of a walk over an endless arena is the capacity that the walk needs. For
// one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"

namespace shoal {

class RangeAllocator {
 public:
  // Practically endless, and still safe to round up.
  static constexpr int64_t kEndless = int64_t{1} << 60;

  // Ranges begin at multiples of `alignment` (a power of two), and so extend to the next one.
  explicit RangeAllocator(int64_t capacity, int64_t alignment = 1)
      : capacity_(capacity), alignment_(alignment) {
    SHOAL_CHECK(capacity >= 0 && alignment > 0);
    if (capacity > 0) {
      AddHole(0, capacity);
    }
  }

  // `size` > 0. Nothing if no hole is large enough.
  std::optional<int64_t> Take(int64_t size) {
    SHOAL_CHECK(size > 0);
    const auto hole = FindHole(RoundUp(size, alignment_));
    if (hole == holes_.end()) {
      return std::nullopt;
    }
    const int64_t begin = hole->first;
    TakeFrom(hole, begin, size);
    return begin;
  }

  // Same as above, at `begin`, a multiple of the alignment. False if not all of that is free.
  bool TakeAt(int64_t begin, int64_t size) {
    SHOAL_CHECK(size > 0 && begin >= 0 && begin % alignment_ == 0);
    auto hole = holes_.upper_bound(begin);
    if (hole == holes_.begin()) {
      return false;
    }
    --hole;
    if (begin + RoundUp(size, alignment_) > hole->first + hole->second) {
      return false;
    }
    TakeFrom(hole, begin, size);
    return true;
  }

  // Frees what Take returned; returns its size.
  int64_t Give(int64_t begin) {
    const auto range = ranges_.find(begin);
    SHOAL_CHECK(range != ranges_.end());
    const int64_t size = range->second;
    ranges_.erase(range);
    used_ -= size;
    int64_t from = begin;
    int64_t end = begin + RoundUp(size, alignment_);
    auto after = holes_.lower_bound(begin);
    if (after != holes_.begin()) {
      if (const auto before = std::prev(after); before->first + before->second == from) {
        from = before->first;
        RemoveHole(before);
      }
    }
    if (after != holes_.end() && after->first == end) {
      end += after->second;
      RemoveHole(after);
    }
    AddHole(from, end - from);
    return size;
  }

  int64_t capacity() const { return capacity_; }
  // Sum of the sizes asked for, without what alignment adds.
  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }
  int64_t largest_hole() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  // Of all ranges that ever existed.
  int64_t highest_end() const { return highest_end_; }

 private:
  using Holes = std::map<int64_t, int64_t>;  // by start: length

  Holes::iterator FindHole(int64_t size) {
    for (auto found = by_size_.lower_bound({size, 0}); found != by_size_.end(); ++found) {
      if (found->second + found->first != capacity_) {
        return holes_.find(found->second);
      }
    }
    if (!holes_.empty()) {
      if (const auto last = std::prev(holes_.end());
          last->first + last->second == capacity_ && last->second >= size) {
        return last;
      }
    }
    return holes_.end();
  }

  void TakeFrom(Holes::iterator hole, int64_t begin, int64_t size) {
    const auto [hole_begin, length] = *hole;
    const int64_t end = begin + RoundUp(size, alignment_);
    RemoveHole(hole);
    if (begin > hole_begin) {
      AddHole(hole_begin, begin - hole_begin);
    }
    if (hole_begin + length > end) {
      AddHole(end, hole_begin + length - end);
    }
    ranges_.emplace(begin, size);
    used_ += size;
    peak_ = std::max(peak_, used_);
    highest_end_ = std::max(highest_end_, end);
  }

  void AddHole(int64_t begin, int64_t length) {
    holes_.emplace(begin, length);
    by_size_.emplace(length, begin);
  }
  void RemoveHole(Holes::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    holes_.erase(hole);
  }

  int64_t capacity_;
  int64_t alignment_;
  Holes holes_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // length, begin
  std::map<int64_t, int64_t> ranges_;              // by start: size as asked for
  int64_t used_ = 0;
  int64_t peak_ = 0;
  int64_t highest_end_ = 0;
};

}  // namespace shoal
