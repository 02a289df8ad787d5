#include "core/plan/memory/arena_layout.h"

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
  ArenaLayout layout;
  int64_t most_at_once = 0;  // including what alignment adds
};

AsTheyCome LayOutAsTheyCome(std::span<const Lifetime> lifetimes, int64_t alignment) {
  AsTheyCome result;
  RangeAllocator ranges(RangeAllocator::kEndless, alignment);
  using Leaving = std::pair<size_t, int64_t>;  // until, offset
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving;
  for (const Lifetime& lifetime : lifetimes) {
    for (; !leaving.empty() && leaving.top().first <= lifetime.from; leaving.pop()) {
      ranges.Give(leaving.top().second);
    }
    const int64_t begin = ranges.Take(RoundUp(lifetime.size, alignment)).value();
    result.layout.offsets.push_back(begin);
    leaving.emplace(lifetime.until, begin);
  }
  result.layout.capacity = ranges.highest_end();
  result.most_at_once = ranges.peak();
  return result;
}

// Each lifetime in turn takes the smallest gap between those that chose earlier and exist at the
// same time.
ArenaLayout LayOutInTurn(std::span<const Lifetime> lifetimes, std::span<const size_t> turn,
                         int64_t alignment) {
  ArenaLayout layout{.offsets = std::vector<int64_t>(lifetimes.size())};
  std::vector<bool> placed(lifetimes.size());
  size_t longest = 0;
  for (const Lifetime& lifetime : lifetimes) {
    longest = std::max(longest, lifetime.until - lifetime.from);
  }
  std::vector<std::pair<int64_t, int64_t>> taken;  // begin, end
  for (const size_t lifetime : turn) {
    taken.clear();
    // A lifetime that began longer ago than the longest one lasts has ended.
    const size_t earliest = lifetimes[lifetime].from - std::min(longest, lifetimes[lifetime].from);
    size_t other =
        std::ranges::lower_bound(lifetimes, earliest, {}, &Lifetime::from) - lifetimes.begin();
    for (; other < lifetimes.size() && lifetimes[other].from < lifetimes[lifetime].until; ++other) {
      if (placed[other] && lifetimes[lifetime].from < lifetimes[other].until) {
        taken.emplace_back(layout.offsets[other],
                           layout.offsets[other] + RoundUp(lifetimes[other].size, alignment));
      }
    }
    std::ranges::sort(taken);
    const int64_t size = RoundUp(lifetimes[lifetime].size, alignment);
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
    layout.offsets[lifetime] = best.value_or(end);
    layout.capacity = std::max(layout.capacity, layout.offsets[lifetime] + size);
    placed[lifetime] = true;
  }
  return layout;
}

}  // namespace

ArenaLayout LayOutArena(std::span<const Lifetime> lifetimes, int64_t alignment, int64_t enough) {
  AsTheyCome as_they_come = LayOutAsTheyCome(lifetimes, alignment);
  ArenaLayout best = std::move(as_they_come.layout);
  const int64_t most_at_once = as_they_come.most_at_once;
  const auto size = [&](size_t i) { return static_cast<double>(lifetimes[i].size); };
  const auto size_and_time = [&](size_t i) {
    return size(i) * static_cast<double>(lifetimes[i].until - lifetimes[i].from);
  };
  std::vector<size_t> turn(lifetimes.size());
  std::iota(turn.begin(), turn.end(), 0);
  const auto consider = [&](const auto& weight) {
    if (best.capacity > std::max(most_at_once, enough)) {
      std::ranges::stable_sort(turn, std::greater<>(), weight);
      if (ArenaLayout layout = LayOutInTurn(lifetimes, turn, alignment);
          layout.capacity < best.capacity) {
        best = std::move(layout);
      }
    }
  };
  consider(size);
  consider(size_and_time);
  return best;
}

}  // namespace shoal::plan
