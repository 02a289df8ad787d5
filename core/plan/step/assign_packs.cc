#include "core/plan/step/assign_packs.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/plan/step/packing.h"

namespace shoal::plan {
namespace {

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
      return PackAlike(items, BalancedSplitEqual(items.costs, workers));
    case Assignment::kLbMini:
      return PackEach(items, BalancedSplit(items.costs, workers));
    case Assignment::kSpeedWeighted:
    case Assignment::kDynamic:
      return PackEach(items, speeds.empty() ? BalancedSplit(items.costs, workers)
                                            : BalancedSplitBySpeed(items.costs, speeds));
    case Assignment::kAuto:
      break;
  }
  SHOAL_CHECK(false);
  return {};
}

}  // namespace shoal::plan
