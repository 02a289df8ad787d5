// Refines a split by exchanging items. Pure and deterministic.
#pragma once

#include <span>

#include "core/plan/step/balanced_split.h"

namespace shoal::plan {

enum class Exchanges { kMovesAndSwaps, kSwaps };  // kSwaps keeps the sizes of the sets

// Exchanges items between the set that takes longest (sum / speed; no speeds: all 1) and any other,
// the best exchange each time, as long as that lowers the longest time. Never raises it.
void LowerLongest(std::span<const double> costs, std::span<const double> speeds,
                  Exchanges exchanges, ItemSets& sets);

}  // namespace shoal::plan
