// Which of a model's units each virtual stage of a pipeline holds: consecutive units of
// plan::BuildUnits (0 the embedding, 1..layers the blocks, layers + 1 the head). Pure and
// deterministic: every stage computes the same split by itself.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

struct UnitRange {
  int first = 0;
  int count = 0;

  int end() const { return first + count; }
  bool contains(int unit) const { return unit >= first && unit < end(); }
  bool operator==(const UnitRange&) const = default;
};

// Rates a split. A step of m microbatches takes about m S + (stages - 1) C, with S the largest sum
// of a stage's chunks and C the costliest chunk. The cost is S + C / 4, as for four microbatches
// per stage.
double SplitCost(std::span<const double> unit_costs, std::span<const UnitRange> split, int stages,
                 int chunks, Placement placement);

// Splits units with these costs (any unit of cost, none negative) into ranges by virtual stage,
// each at least one unit. InvalidArgument if there are fewer units than virtual stages.
// - No contiguous split has a lower SplitCost if there are at most 10000 of them, or if all units
//   but the first and the last cost the same.
// - Otherwise, moving a unit from one virtual stage to another cannot improve the result.
absl::StatusOr<std::vector<UnitRange>> SplitLayers(std::span<const double> unit_costs, int stages,
                                                   int chunks, Placement placement);

}  // namespace shoal::plan
