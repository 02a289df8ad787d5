// Splits items into sets of nearly equal cost. Pure and deterministic.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal::plan {

using ItemSets = std::vector<std::vector<size_t>>;  // item indices by set, ascending within a set

// Karmarkar-Karp's largest differencing method for `sets` sets of any size: partial solutions (one
// per item at first) are combined in pairs, those with the widest spread first, the largest set of
// one with the smallest of the other. O(n (log n + sets log sets)).
ItemSets KarmarkarKarp(std::span<const double> costs, int sets);

// Same as above for sets whose sizes differ by at most one: a partial solution begins with as many
// items as there are sets, neighbours by cost, one in each.
ItemSets KarmarkarKarpEqual(std::span<const double> costs, int sets);

// Costliest item first, each to the set that would then finish first, at that set's speed.
ItemSets LongestFirst(std::span<const double> costs, std::span<const double> speeds);

// Runs one of these, then refines. Costs must not be negative;
// with fewer items than sets some sets are empty.
ItemSets BalancedSplit(std::span<const double> costs, int sets);
ItemSets BalancedSplitEqual(std::span<const double> costs, int sets);
// Balances cost / speed; speeds must be positive, one for each set.
ItemSets BalancedSplitBySpeed(std::span<const double> costs, std::span<const double> speeds);

// Returns the sum of each set's costs.
std::vector<double> SumsOf(std::span<const double> costs, const ItemSets& sets);

}  // namespace shoal::plan
