#include "core/plan/step/balanced_split.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/check.h"
#include "core/plan/step/split_refinement.h"

namespace shoal::plan {
namespace {

constexpr size_t kNoChain = std::numeric_limits<size_t>::max();

// A set in a partial solution: a chain of items through `next`, so that joining two sets takes no
// time.
struct Chain {
  double sum = 0;
  size_t head = kNoChain;
  size_t tail = kNoChain;
};

// One way to spread some of the items over the sets, largest sum first; sets without items are left
// out, so that with many sets a partial solution of few items is small.
struct Partial {
  std::vector<Chain> sets;
  size_t id = 0;  // the order of creation settles ties
  double spread = 0;

  void Measure(size_t count) {
    spread = sets.front().sum - (sets.size() == count ? sets.back().sum : 0.0);
  }
};

struct Narrower {
  bool operator()(const Partial& a, const Partial& b) const {
    if (a.spread != b.spread) {
      return a.spread < b.spread;
    }
    if (a.sets.front().sum != b.sets.front().sum) {
      return a.sets.front().sum < b.sets.front().sum;
    }
    return a.id > b.id;
  }
};

void Append(Chain& chain, const Chain& other, std::vector<size_t>& next) {
  next[chain.tail] = other.head;
  chain.tail = other.tail;
  chain.sum += other.sum;
}

// The largest set of one with the smallest of the other, of `count` each.
void Join(Partial& first, const Partial& second, size_t count, std::vector<size_t>& next) {
  const auto larger = [](const Chain& a, const Chain& b) { return a.sum > b.sum; };
  std::vector<Chain>& sets = first.sets;
  const size_t own = sets.size();
  const size_t changed = std::min(own, count - second.sets.size());
  for (size_t set = changed; set < own; ++set) {
    Append(sets[set], second.sets[count - 1 - set], next);
  }
  for (size_t set = std::min(second.sets.size(), count - own); set-- > 0;) {
    sets.push_back(second.sets[set]);
  }
  // Those before `changed` are in order; often just one is not.
  const auto tail = sets.begin() + static_cast<ptrdiff_t>(changed);
  if (tail + 1 == sets.end()) {
    std::rotate(std::upper_bound(sets.begin(), tail, *tail, larger), tail, sets.end());
    return;
  }
  std::stable_sort(tail, sets.end(), larger);
  std::inplace_merge(sets.begin(), tail, sets.end(), larger);
}

Partial TakeWidest(std::vector<Partial>& heap) {
  std::pop_heap(heap.begin(), heap.end(), Narrower());
  Partial widest = std::move(heap.back());
  heap.pop_back();
  return widest;
}

// Combines partial solutions until one is left.
ItemSets Combine(std::vector<Partial> heap, std::vector<size_t> next, size_t count) {
  for (Partial& partial : heap) {
    partial.Measure(count);
  }
  std::make_heap(heap.begin(), heap.end(), Narrower());
  for (size_t id = heap.size(); heap.size() > 1; ++id) {
    Partial first = TakeWidest(heap);
    Join(first, TakeWidest(heap), count, next);
    first.id = id;
    first.Measure(count);
    heap.push_back(std::move(first));
    std::push_heap(heap.begin(), heap.end(), Narrower());
  }
  ItemSets result(count);
  const std::vector<Chain>& sets = heap.front().sets;
  for (size_t set = 0; set < sets.size(); ++set) {
    for (size_t item = sets[set].head; item != kNoChain; item = next[item]) {
      result[set].push_back(item);
    }
    std::sort(result[set].begin(), result[set].end());
  }
  return result;
}

// Indices by falling value, ties in order.
std::vector<size_t> CostliestFirst(std::span<const double> costs) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  return order;
}

double LongestTime(std::span<const double> costs, std::span<const double> speeds,
                   const ItemSets& sets) {
  const std::vector<double> sums = SumsOf(costs, sets);
  double longest = 0;
  for (size_t set = 0; set < sets.size(); ++set) {
    longest = std::max(longest, sums[set] / speeds[set]);
  }
  return longest;
}

// The same sets in another order: the costliest for the fastest, and so on.
ItemSets MatchedToSpeeds(ItemSets sets, std::span<const double> costs,
                         std::span<const double> speeds) {
  const std::vector<double> sums = SumsOf(costs, sets);
  const std::vector<size_t> by_cost = CostliestFirst(sums);
  const std::vector<size_t> by_speed = CostliestFirst(speeds);
  ItemSets matched(sets.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    matched[by_speed[i]] = std::move(sets[by_cost[i]]);
  }
  return matched;
}

}  // namespace

ItemSets KarmarkarKarp(std::span<const double> costs, int sets) {
  SHOAL_CHECK(sets > 0);
  const auto count = static_cast<size_t>(sets);
  if (costs.empty()) {
    return ItemSets(count);
  }
  std::vector<Partial> initial;
  for (size_t item = 0; item < costs.size(); ++item) {
    Partial& partial = initial.emplace_back();
    partial.id = item;
    partial.sets.push_back({costs[item], item, item});
  }
  return Combine(std::move(initial), std::vector<size_t>(costs.size(), kNoChain), count);
}

ItemSets KarmarkarKarpEqual(std::span<const double> costs, int sets) {
  SHOAL_CHECK(sets > 0);
  const auto count = static_cast<size_t>(sets);
  if (costs.empty()) {
    return ItemSets(count);
  }
  const std::vector<size_t> order = CostliestFirst(costs);
  std::vector<Partial> initial;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i % count == 0) {
      initial.push_back({.sets = {}, .id = initial.size()});
    }
    initial.back().sets.push_back({costs[order[i]], order[i], order[i]});
  }
  return Combine(std::move(initial), std::vector<size_t>(costs.size(), kNoChain), count);
}

ItemSets LongestFirst(std::span<const double> costs, std::span<const double> speeds) {
  SHOAL_CHECK(!speeds.empty());
  ItemSets result(speeds.size());
  std::vector<double> sums(speeds.size(), 0.0);
  for (const size_t item : CostliestFirst(costs)) {
    size_t best = 0;
    for (size_t set = 1; set < speeds.size(); ++set) {
      if ((sums[set] + costs[item]) * speeds[best] < (sums[best] + costs[item]) * speeds[set]) {
        best = set;
      }
    }
    sums[best] += costs[item];
    result[best].push_back(item);
  }
  for (std::vector<size_t>& set : result) {
    std::sort(set.begin(), set.end());
  }
  return result;
}

ItemSets BalancedSplit(std::span<const double> costs, int sets) {
  ItemSets result = KarmarkarKarp(costs, sets);
  LowerLongest(costs, {}, Exchanges::kMovesAndSwaps, result);
  return result;
}

ItemSets BalancedSplitEqual(std::span<const double> costs, int sets) {
  ItemSets result = KarmarkarKarpEqual(costs, sets);
  LowerLongest(costs, {}, Exchanges::kSwaps, result);
  return result;
}

ItemSets BalancedSplitBySpeed(std::span<const double> costs, std::span<const double> speeds) {
  SHOAL_CHECK(!speeds.empty());
  SHOAL_CHECK(std::all_of(speeds.begin(), speeds.end(), [](double speed) { return speed > 0; }));
  const auto [slowest, fastest] = std::minmax_element(speeds.begin(), speeds.end());
  if (*slowest == *fastest) {
    return BalancedSplit(costs, static_cast<int>(speeds.size()));
  }
  // Where speeds differ little, as measured ones of equal workers do, differencing is the better
  // start; where they differ much, the other.
  ItemSets best = LongestFirst(costs, speeds);
  LowerLongest(costs, speeds, Exchanges::kMovesAndSwaps, best);
  ItemSets matched =
      MatchedToSpeeds(BalancedSplit(costs, static_cast<int>(speeds.size())), costs, speeds);
  LowerLongest(costs, speeds, Exchanges::kMovesAndSwaps, matched);
  return LongestTime(costs, speeds, matched) < LongestTime(costs, speeds, best) ? matched : best;
}

std::vector<double> SumsOf(std::span<const double> costs, const ItemSets& sets) {
  std::vector<double> sums;
  for (const std::vector<size_t>& set : sets) {
    sums.push_back(std::accumulate(set.begin(), set.end(), 0.0,
                                   [&](double sum, size_t item) { return sum + costs[item]; }));
  }
  return sums;
}

}  // namespace shoal::plan
