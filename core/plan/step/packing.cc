#include "core/plan/step/packing.h"

#include <algorithm>
#include <numeric>

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

}  // namespace

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

}  // namespace shoal::plan
