// Splitting items into sets of nearly equal cost. Pure and deterministic.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal::plan {

using ItemSets = std::vector<std::vector<size_t>>;  // item indices by set, ascending within a set

// Karmarkar-Karp's largest differencing method for `sets` sets, sizes unequal: partial solutions
// (one per item at first) are combined two by two, those with the widest spread first, the largest
// set of one with the smallest of the other. O(n (log n + sets log sets)).
ItemSets KarmarkarKarp(std::span<const double> costs, int sets);

// Moves and swaps between the heaviest set and any other, the best one each time, as long as that
// lowers the largest sum. Never makes it larger.
void LowerLargestSum(std::span<const double> costs, ItemSets& sets);

// Both, one after the other. Costs are not negative; with fewer items than sets some sets are
// empty.
ItemSets BalancedSplit(std::span<const double> costs, int sets);

// The sum of each set's costs.
std::vector<double> SumsOf(std::span<const double> costs, const ItemSets& sets);

}  // namespace shoal::plan
