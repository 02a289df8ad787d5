#include "core/plan/step/split_refinement.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/check.h"

namespace shoal::plan {
namespace {

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

// The items of a set, by cost, and what they add up to.
struct PricedSet {
  std::vector<Priced> items;
  double sum = 0;
  double speed = 1;

  double time() const { return sum / speed; }
};

// The best exchange with one other set.
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

}  // namespace

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

}  // namespace shoal::plan
