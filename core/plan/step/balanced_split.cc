#include "core/plan/step/balanced_split.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/check.h"

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

// One way to spread some of the items over the sets, largest sum first; omits sets without items,
// so that with many sets a partial solution of few items is small.
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

// Joins the largest set of one with the smallest of the other, and so on, for `count` sets.
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
  // Those before `changed` are sorted; often only one is not.
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

// Combines partial solutions of `items` items until one is left.
ItemSets Combine(std::vector<Partial> heap, size_t items, size_t count) {
  if (heap.empty()) {
    return ItemSets(count);
  }
  std::vector<size_t> next(items, kNoChain);
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

// Returns indices by falling value, ties in order.
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

// Returns the same sets in another order: the costliest for the fastest, and so on.
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

enum class Exchanges { kMovesAndSwaps, kSwaps };  // kSwaps keeps the sizes of the sets

constexpr size_t kNoItem = std::numeric_limits<size_t>::max();
// Times that differ by less are equal: rounding must not keep the refinement going.
constexpr double kRoundingOfCosts = 1e-12;

// An item of a set, by cost.
using Priced = std::pair<double, size_t>;

// A change between the set that takes longest and another: `give` leaves the longest, `take` (if
// any) comes in its place.
struct Exchange {
  double longest = 0;  // the longer of the two times afterwards
  size_t other = kNoItem;
  Priced give;
  Priced take{0, kNoItem};
};

// The items of a set, by cost, and their sum.
struct PricedSet {
  std::vector<Priced> items;
  double sum = 0;
  double speed = 1;

  double time() const { return sum / speed; }
};

// Considers the best exchange with one other set.
void ConsiderSet(const PricedSet& longest, const PricedSet& set, size_t other, Exchanges exchanges,
                 Exchange& best) {
  const auto consider = [&](const Priced& give, const Priced& take) {
    const double difference = give.first - take.first;
    const double time =
        std::max((longest.sum - difference) / longest.speed, (set.sum + difference) / set.speed);
    if (time < best.longest * (1 - kRoundingOfCosts)) {
      best = {time, other, give, take};
    }
  };
  // The difference that makes both times equal.
  const double ideal =
      (longest.sum * set.speed - set.sum * longest.speed) / (longest.speed + set.speed);
  for (const Priced& give : longest.items) {
    if (exchanges == Exchanges::kMovesAndSwaps) {
      consider(give, {0, kNoItem});
    }
    const auto above =
        std::lower_bound(set.items.begin(), set.items.end(), Priced{give.first - ideal, 0});
    if (above != set.items.end()) {
      consider(give, *above);
    }
    if (above != set.items.begin()) {
      consider(give, *std::prev(above));
    }
  }
}

void Insert(std::vector<Priced>& items, const Priced& item) {
  items.insert(std::lower_bound(items.begin(), items.end(), item), item);
}
void Erase(std::vector<Priced>& items, const Priced& item) {
  items.erase(std::lower_bound(items.begin(), items.end(), item));
}
double SumOf(const std::vector<Priced>& items) {
  return std::accumulate(items.begin(), items.end(), 0.0,
                         [](double sum, const Priced& item) { return sum + item.first; });
}

// Exchanges items between the set that takes longest (sum / speed; no speeds: all 1) and any other,
// the best exchange each time, as long as that lowers the longest time. Never raises it.
void LowerLongest(std::span<const double> costs, std::span<const double> speeds,
                  Exchanges exchanges, ItemSets& sets) {
  SHOAL_CHECK(speeds.empty() || speeds.size() == sets.size());
  std::vector<PricedSet> priced(sets.size());
  for (size_t set = 0; set < sets.size(); ++set) {
    for (const size_t item : sets[set]) {
      priced[set].items.emplace_back(costs[item], item);
    }
    std::sort(priced[set].items.begin(), priced[set].items.end());
    priced[set].sum = SumOf(priced[set].items);
    priced[set].speed = speeds.empty() ? 1.0 : speeds[set];
  }
  const auto shorter = [](const PricedSet& a, const PricedSet& b) { return a.time() < b.time(); };
  // Each round lowers a longest time; the bound only guards against rounding.
  for (size_t round = 0; round < 8 * costs.size() + 8; ++round) {
    const auto longest = std::max_element(priced.begin(), priced.end(), shorter);
    Exchange best{.longest = longest->time()};
    for (size_t other = 0; other < sets.size(); ++other) {
      if (&priced[other] != &*longest) {
        ConsiderSet(*longest, priced[other], other, exchanges, best);
      }
    }
    if (best.other == kNoItem) {
      break;
    }
    PricedSet& receiver = priced[best.other];
    Erase(longest->items, best.give);
    Insert(receiver.items, best.give);
    if (best.take.second != kNoItem) {
      Erase(receiver.items, best.take);
      Insert(longest->items, best.take);
    }
    longest->sum = SumOf(longest->items);
    receiver.sum = SumOf(receiver.items);
  }
  for (size_t set = 0; set < sets.size(); ++set) {
    sets[set].clear();
    for (const auto& [cost, item] : priced[set].items) {
      sets[set].push_back(item);
    }
    std::sort(sets[set].begin(), sets[set].end());
  }
}

}  // namespace

ItemSets KarmarkarKarp(std::span<const double> costs, int sets) {
  SHOAL_CHECK(sets > 0);
  const auto count = static_cast<size_t>(sets);
  std::vector<Partial> initial;
  for (size_t item = 0; item < costs.size(); ++item) {
    Partial& partial = initial.emplace_back();
    partial.id = item;
    partial.sets.push_back({costs[item], item, item});
  }
  return Combine(std::move(initial), costs.size(), count);
}

ItemSets KarmarkarKarpEqual(std::span<const double> costs, int sets) {
  SHOAL_CHECK(sets > 0);
  const auto count = static_cast<size_t>(sets);
  const std::vector<size_t> order = CostliestFirst(costs);
  std::vector<Partial> initial;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i % count == 0) {
      initial.push_back({.sets = {}, .id = initial.size()});
    }
    initial.back().sets.push_back({costs[order[i]], order[i], order[i]});
  }
  return Combine(std::move(initial), costs.size(), count);
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
  // If speeds differ little, as measured ones of equal workers do, differencing is the better
  // start; if they differ much, the other.
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
