// Carries out an assignment: decides which samples go through the model together, and on which
// worker. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/job/assignment.h"
#include "core/plan/step/balanced_split.h"

namespace shoal::plan {

// What is assigned: a token count and a cost for each item, none longer than the limit.
struct PackableItems {
  std::span<const int64_t> tokens;
  std::span<const double> costs;
  int64_t limit = 0;  // tokens of a pack
};

// Returns the packs of each worker, none empty; with kNative and kLocalSort in the order in which
// it runs them. `assignment` must not be kAuto. Only kSpeedWeighted and kDynamic use `speeds`
// (empty: all 1).
std::vector<ItemSets> AssignPacks(const PackableItems& items, int workers, Assignment assignment,
                                  std::span<const double> speeds);

// Splits what has these costs between workers, as `assignment` (none of kAuto, kNative, kLocalSort)
// splits samples.
ItemSets SplitByCost(std::span<const double> costs, int workers, Assignment assignment,
                     std::span<const double> speeds);

}  // namespace shoal::plan
