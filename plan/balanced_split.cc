#include "plan/balanced_split.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "common/check.h"

namespace shoal::plan {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();
// Sums that differ by less are equal: rounding must not keep the refinement going.
constexpr double kRelativeGain = 1e-12;

// A set in a partial solution: a chain of items through `next`, so that joining two sets takes no
// time.
struct Chain {
  double sum = 0;
  size_t head = kNone;
  size_t tail = kNone;
};

// One way to spread some of the items over the sets, largest sum first.
struct Partial {
  std::vector<Chain> sets;
  size_t id = 0;  // the order of creation settles ties

  double spread() const { return sets.front().sum - sets.back().sum; }
};

struct Narrower {
  bool operator()(const Partial& a, const Partial& b) const {
    if (a.spread() != b.spread()) {
      return a.spread() < b.spread();
    }
    if (a.sets.front().sum != b.sets.front().sum) {
      return a.sets.front().sum < b.sets.front().sum;
    }
    return a.id > b.id;
  }
};

void Append(Chain& chain, const Chain& other, std::vector<size_t>& next) {
  if (other.head == kNone) {
    return;
  }
  if (chain.head == kNone) {
    chain = other;
    return;
  }
  next[chain.tail] = other.head;
  chain.tail = other.tail;
  chain.sum += other.sum;
}

// An item of a set, by cost.
using Priced = std::pair<double, size_t>;

// A change between the heaviest set and another: `give` leaves the heaviest, `take` (if any) comes
// in its place.
struct Exchange {
  double largest = 0;  // the larger of the two sums afterwards
  size_t other = kNone;
  Priced give;
  Priced take{0, kNone};
};

// The best exchange with one other set. `items` are sorted by cost.
void ConsiderSet(const std::vector<Priced>& heavy, double heavy_sum,
                 const std::vector<Priced>& items, double sum, size_t other, Exchange& best) {
  const auto consider = [&](const Priced& give, const Priced& take) {
    const double difference = give.first - take.first;
    const double largest = std::max(heavy_sum - difference, sum + difference);
    if (largest < best.largest * (1 - kRelativeGain)) {
      best = {largest, other, give, take};
    }
  };
  const double ideal = (heavy_sum - sum) / 2;  // the difference that makes both sums equal
  for (const Priced& give : heavy) {
    consider(give, {0, kNone});
    const auto above = std::lower_bound(items.begin(), items.end(), Priced{give.first - ideal, 0});
    if (above != items.end()) {
      consider(give, *above);
    }
    if (above != items.begin()) {
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

}  // namespace

ItemSets KarmarkarKarp(std::span<const double> costs, int sets) {
  SHOAL_CHECK(sets > 0);
  const auto count = static_cast<size_t>(sets);
  if (costs.empty()) {
    return ItemSets(count);
  }
  std::vector<size_t> next(costs.size(), kNone);
  std::vector<Partial> initial;
  for (size_t item = 0; item < costs.size(); ++item) {
    Partial& partial = initial.emplace_back();
    partial.id = item;
    partial.sets.resize(count);
    partial.sets.front() = {costs[item], item, item};
  }
  std::priority_queue heap(Narrower(), std::move(initial));
  for (size_t id = costs.size(); heap.size() > 1; ++id) {
    Partial first = heap.top();
    heap.pop();
    const Partial second = heap.top();
    heap.pop();
    for (size_t set = 0; set < count; ++set) {
      Append(first.sets[set], second.sets[count - 1 - set], next);
    }
    std::stable_sort(first.sets.begin(), first.sets.end(),
                     [](const Chain& a, const Chain& b) { return a.sum > b.sum; });
    first.id = id;
    heap.push(std::move(first));
  }
  ItemSets result(count);
  for (size_t set = 0; set < count; ++set) {
    for (size_t item = heap.top().sets[set].head; item != kNone; item = next[item]) {
      result[set].push_back(item);
    }
    std::sort(result[set].begin(), result[set].end());
  }
  return result;
}

void LowerLargestSum(std::span<const double> costs, ItemSets& sets) {
  std::vector<std::vector<Priced>> priced(sets.size());
  std::vector<double> sums(sets.size());
  for (size_t set = 0; set < sets.size(); ++set) {
    for (const size_t item : sets[set]) {
      priced[set].emplace_back(costs[item], item);
    }
    std::sort(priced[set].begin(), priced[set].end());
    sums[set] = SumOf(priced[set]);
  }
  // Each round lowers a largest sum; the bound only guards against rounding.
  for (size_t round = 0; round < 8 * costs.size() + 8; ++round) {
    const auto heaviest =
        static_cast<size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin());
    Exchange best{.largest = sums[heaviest]};
    for (size_t other = 0; other < sets.size(); ++other) {
      if (other != heaviest) {
        ConsiderSet(priced[heaviest], sums[heaviest], priced[other], sums[other], other, best);
      }
    }
    if (best.other == kNone) {
      break;
    }
    Erase(priced[heaviest], best.give);
    Insert(priced[best.other], best.give);
    if (best.take.second != kNone) {
      Erase(priced[best.other], best.take);
      Insert(priced[heaviest], best.take);
    }
    sums[heaviest] = SumOf(priced[heaviest]);
    sums[best.other] = SumOf(priced[best.other]);
  }
  for (size_t set = 0; set < sets.size(); ++set) {
    sets[set].clear();
    for (const auto& [cost, item] : priced[set]) {
      sets[set].push_back(item);
    }
    std::sort(sets[set].begin(), sets[set].end());
  }
}

ItemSets BalancedSplit(std::span<const double> costs, int sets) {
  ItemSets result = KarmarkarKarp(costs, sets);
  LowerLargestSum(costs, result);
  return result;
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
