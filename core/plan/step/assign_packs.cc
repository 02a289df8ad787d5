#include "core/plan/step/assign_packs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/check.h"

namespace shoal::plan {
namespace {

constexpr double kRelativeGain = 1e-12;

int64_t TokensOf(std::span<const int64_t> tokens, const std::vector<size_t>& pack) {
  return std::accumulate(pack.begin(), pack.end(), int64_t{0},
                         [&](int64_t sum, size_t item) { return sum + tokens[item]; });
}

bool Fits(std::span<const int64_t> tokens, const ItemSets& packs, int64_t limit) {
  return std::all_of(packs.begin(), packs.end(), [&](const std::vector<size_t>& pack) {
    return TokensOf(tokens, pack) <= limit;
  });
}

ItemSets FirstFitDecreasing(std::span<const int64_t> tokens, int64_t limit) {
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tokens[a] > tokens[b]; });
  ItemSets packs;
  std::vector<int64_t> used;
  for (const size_t item : order) {
    const auto room = std::find_if(used.begin(), used.end(),
                                   [&](int64_t sum) { return sum + tokens[item] <= limit; });
    const auto pack = static_cast<size_t>(room - used.begin());
    if (room == used.end()) {
      packs.emplace_back();
      used.push_back(0);
    }
    packs[pack].push_back(item);
    used[pack] += tokens[item];
  }
  return packs;
}

// Makes one swap or move between the costliest pack and another that lowers the larger of their
// costs and keeps both within the limit; false if there is none.
bool ImproveOnce(std::span<const int64_t> tokens, std::span<const double> costs, int64_t limit,
                 ItemSets& packs) {
  const std::vector<double> sums = SumsOf(costs, packs);
  const auto heavy = static_cast<size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin());
  const int64_t heavy_tokens = TokensOf(tokens, packs[heavy]);
  double best = sums[heavy] * (1 - kRelativeGain);
  size_t best_other = packs.size();
  size_t best_give = 0;
  size_t best_take = 0;  // index in the other pack; its size: nothing is taken in exchange
  for (size_t other = 0; other < packs.size(); ++other) {
    if (other == heavy) {
      continue;
    }
    const int64_t other_tokens = TokensOf(tokens, packs[other]);
    for (size_t give = 0; give < packs[heavy].size(); ++give) {
      for (size_t take = 0; take <= packs[other].size(); ++take) {
        const size_t given = packs[heavy][give];
        const bool swap = take < packs[other].size();
        const double cost = costs[given] - (swap ? costs[packs[other][take]] : 0.0);
        const int64_t moved = tokens[given] - (swap ? tokens[packs[other][take]] : 0);
        const double largest = std::max(sums[heavy] - cost, sums[other] + cost);
        if (largest < best && heavy_tokens - moved <= limit && other_tokens + moved <= limit) {
          best = largest;
          best_other = other;
          best_give = give;
          best_take = take;
        }
      }
    }
  }
  if (best_other == packs.size()) {
    return false;
  }
  std::vector<size_t>& from = packs[heavy];
  std::vector<size_t>& to = packs[best_other];
  if (best_take < to.size()) {
    std::swap(from[best_give], to[best_take]);
  } else {
    to.push_back(from[best_give]);
    from.erase(from.begin() + static_cast<ptrdiff_t>(best_give));
  }
  return true;
}

void EvenOut(std::span<const int64_t> tokens, std::span<const double> costs, int64_t limit,
             ItemSets& packs) {
  // Each round lowers a largest cost; the bound only guards against rounding.
  for (size_t round = 0; round < 8 * tokens.size() && ImproveOnce(tokens, costs, limit, packs);
       ++round) {
  }
}

// Returns exactly `count` packs, some possibly empty; nothing if it finds no way (with a pack for
// each item there always is one).
ItemSets PackInto(std::span<const int64_t> tokens, std::span<const double> costs, int64_t limit,
                  int count) {
  ItemSets packs = BalancedSplit(costs, count);
  if (Fits(tokens, packs, limit)) {
    return packs;
  }
  // Costs grow faster than lengths, so a pack of many short samples may be too long although its
  // cost is even.
  const std::vector<double> lengths(tokens.begin(), tokens.end());
  packs = BalancedSplit(lengths, count);
  if (Fits(tokens, packs, limit)) {
    EvenOut(tokens, costs, limit, packs);
    return packs;
  }
  return {};
}

// Returns as few packs as the method finds (never more than first-fit decreasing needs), none above
// `limit` tokens, and with costs as even as the limit allows. Every item must have at most `limit`
// tokens. No pack is empty.
ItemSets PackUnderLimit(std::span<const int64_t> tokens, std::span<const double> costs,
                        int64_t limit) {
  SHOAL_CHECK(tokens.size() == costs.size());
  SHOAL_CHECK(
      std::all_of(tokens.begin(), tokens.end(), [&](int64_t count) { return count <= limit; }));
  if (tokens.empty()) {
    return {};
  }
  ItemSets fallback = FirstFitDecreasing(tokens, limit);
  const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const auto fewest = std::max<size_t>(1, static_cast<size_t>((total + limit - 1) / limit));
  ItemSets packs;
  for (size_t count = fewest; packs.empty() && count <= fallback.size(); ++count) {
    packs = PackInto(tokens, costs, limit, static_cast<int>(count));
  }
  if (packs.empty()) {
    packs = std::move(fallback);
    EvenOut(tokens, costs, limit, packs);
  }
  std::erase_if(packs, [](const std::vector<size_t>& pack) { return pack.empty(); });
  for (std::vector<size_t>& pack : packs) {
    std::sort(pack.begin(), pack.end());
  }
  return packs;
}

// Some of the items, with their own indices.
struct Local {
  Local(const PackableItems& items, const std::vector<size_t>& chosen) : indices(chosen) {
    for (const size_t item : chosen) {
      tokens.push_back(items.tokens[item]);
      costs.push_back(items.costs[item]);
    }
  }

  // Maps local indices back to those of all items.
  ItemSets Global(ItemSets packs) const {
    for (std::vector<size_t>& pack : packs) {
      for (size_t& item : pack) {
        item = indices[item];
      }
    }
    return packs;
  }

  std::vector<size_t> indices;
  std::vector<int64_t> tokens;
  std::vector<double> costs;
};

ItemSets DealInTurn(size_t items, int workers) {
  ItemSets result(static_cast<size_t>(workers));
  for (size_t item = 0; item < items; ++item) {
    result[item % result.size()].push_back(item);
  }
  return result;
}

ItemSets OneToAPack(const std::vector<size_t>& items) {
  ItemSets packs;
  for (const size_t item : items) {
    packs.push_back({item});
  }
  return packs;
}

std::vector<ItemSets> AssignInTurn(const PackableItems& items, int workers, bool sorted) {
  std::vector<ItemSets> result;
  for (std::vector<size_t>& dealt : DealInTurn(items.tokens.size(), workers)) {
    if (sorted) {
      std::stable_sort(dealt.begin(), dealt.end(),
                       [&](size_t a, size_t b) { return items.tokens[a] < items.tokens[b]; });
    }
    result.push_back(OneToAPack(dealt));
  }
  return result;
}

// Each worker packs for itself.
std::vector<ItemSets> PackEach(const PackableItems& items, const ItemSets& split) {
  std::vector<ItemSets> result;
  for (const std::vector<size_t>& chosen : split) {
    const Local local(items, chosen);
    result.push_back(local.Global(PackUnderLimit(local.tokens, local.costs, items.limit)));
  }
  return result;
}

// Packs all workers' items into the same number of packs, the smallest possible for all.
std::vector<ItemSets> PackAlike(const PackableItems& items, const ItemSets& split) {
  std::vector<Local> locals;
  size_t count = 0;
  for (const std::vector<size_t>& chosen : split) {
    const Local& local = locals.emplace_back(items, chosen);
    count = std::max(count, PackUnderLimit(local.tokens, local.costs, items.limit).size());
  }
  while (true) {
    std::vector<ItemSets> result;
    for (const Local& local : locals) {
      ItemSets packs = PackInto(local.tokens, local.costs, items.limit,
                                static_cast<int>(std::max<size_t>(1, count)));
      if (packs.empty()) {
        break;
      }
      std::erase_if(packs, [](const std::vector<size_t>& pack) { return pack.empty(); });
      result.push_back(local.Global(std::move(packs)));
    }
    if (result.size() == locals.size()) {
      return result;
    }
    // With a pack for each item everything fits.
    SHOAL_CHECK(count < items.tokens.size());
    ++count;
  }
}

}  // namespace

ItemSets SplitByCost(std::span<const double> costs, int workers, Assignment assignment,
                     std::span<const double> speeds) {
  switch (assignment) {
    case Assignment::kLbMicro:
      return BalancedSplitEqual(costs, workers);
    case Assignment::kSpeedWeighted:
    case Assignment::kDynamic:
      return speeds.empty() ? BalancedSplit(costs, workers) : BalancedSplitBySpeed(costs, speeds);
    default:
      return BalancedSplit(costs, workers);
  }
}

std::vector<ItemSets> AssignPacks(const PackableItems& items, int workers, Assignment assignment,
                                  std::span<const double> speeds) {
  SHOAL_CHECK(workers > 0 && items.tokens.size() == items.costs.size());
  SHOAL_CHECK(speeds.empty() || speeds.size() == static_cast<size_t>(workers));
  switch (assignment) {
    case Assignment::kNative:
      return AssignInTurn(items, workers, /*sorted=*/false);
    case Assignment::kLocalSort:
      return AssignInTurn(items, workers, /*sorted=*/true);
    case Assignment::kLbMicro:
      return PackAlike(items, SplitByCost(items.costs, workers, assignment, speeds));
    case Assignment::kLbMini:
    case Assignment::kSpeedWeighted:
    case Assignment::kDynamic:
      return PackEach(items, SplitByCost(items.costs, workers, assignment, speeds));
    case Assignment::kAuto:
      break;
  }
  SHOAL_CHECK(false);
  return {};
}

}  // namespace shoal::plan
