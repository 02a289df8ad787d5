#include "core/plan/memory/memory_places.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/memory/range_allocator.h"

namespace shoal::plan {
namespace {

struct AsTheyCome {
  MemoryPlaces places;
  int64_t most_at_once = 0;  // including what alignment adds
};

AsTheyCome PlaceAsTheyCome(std::span<const MemoryStay> stays, int64_t alignment) {
  AsTheyCome result;
  RangeAllocator ranges(RangeAllocator::kEndless, alignment);
  using Leaving = std::pair<size_t, int64_t>;  // until, place
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving;
  for (const MemoryStay& stay : stays) {
    for (; !leaving.empty() && leaving.top().first <= stay.from; leaving.pop()) {
      ranges.Give(leaving.top().second);
    }
    const int64_t begin = ranges.Take(RoundUp(stay.size, alignment)).value();
    result.places.begins.push_back(begin);
    leaving.emplace(stay.until, begin);
  }
  result.places.capacity = ranges.highest_end();
  result.most_at_once = ranges.peak();
  return result;
}

// Each stay in turn takes the smallest gap between those that chose earlier and exist at the same
// time.
MemoryPlaces PlaceInTurn(std::span<const MemoryStay> stays, std::span<const size_t> turn,
                         int64_t alignment) {
  MemoryPlaces places{.begins = std::vector<int64_t>(stays.size())};
  std::vector<bool> placed(stays.size());
  size_t longest = 0;
  for (const MemoryStay& stay : stays) {
    longest = std::max(longest, stay.until - stay.from);
  }
  std::vector<std::pair<int64_t, int64_t>> taken;  // begin, end
  for (const size_t stay : turn) {
    taken.clear();
    // A stay that began longer ago than the longest stay lasts has ended.
    const size_t earliest = stays[stay].from - std::min(longest, stays[stay].from);
    size_t other = std::ranges::lower_bound(stays, earliest, {}, &MemoryStay::from) - stays.begin();
    for (; other < stays.size() && stays[other].from < stays[stay].until; ++other) {
      if (placed[other] && stays[stay].from < stays[other].until) {
        taken.emplace_back(places.begins[other],
                           places.begins[other] + RoundUp(stays[other].size, alignment));
      }
    }
    std::ranges::sort(taken);
    const int64_t size = RoundUp(stays[stay].size, alignment);
    int64_t end = 0;  // of those visited so far
    int64_t smallest = std::numeric_limits<int64_t>::max();
    std::optional<int64_t> best;
    for (const auto& [begin, other_end] : taken) {
      if (const int64_t gap = begin - end; gap >= size && gap < smallest) {
        smallest = gap;
        best = end;
      }
      end = std::max(end, other_end);
    }
    places.begins[stay] = best.value_or(end);
    places.capacity = std::max(places.capacity, places.begins[stay] + size);
    placed[stay] = true;
  }
  return places;
}

}  // namespace

MemoryPlaces PlaceStays(std::span<const MemoryStay> stays, int64_t alignment, int64_t enough) {
  AsTheyCome as_they_come = PlaceAsTheyCome(stays, alignment);
  MemoryPlaces best = std::move(as_they_come.places);
  const int64_t most_at_once = as_they_come.most_at_once;
  const auto size = [&](size_t i) { return static_cast<double>(stays[i].size); };
  const auto size_and_time = [&](size_t i) {
    return size(i) * static_cast<double>(stays[i].until - stays[i].from);
  };
  std::vector<size_t> turn(stays.size());
  std::iota(turn.begin(), turn.end(), 0);
  const auto consider = [&](const auto& weight) {
    if (best.capacity > std::max(most_at_once, enough)) {
      std::ranges::stable_sort(turn, std::greater<>(), weight);
      if (MemoryPlaces places = PlaceInTurn(stays, turn, alignment);
          places.capacity < best.capacity) {
        best = std::move(places);
      }
    }
  };
  consider(size);
  consider(size_and_time);
  return best;
}

}  // namespace shoal::plan
