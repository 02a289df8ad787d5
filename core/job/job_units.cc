#include "core/job/job_units.h"

#include <algorithm>

namespace shoal::plan {

std::vector<UnitSpec> JobUnits(const ModelSpec& spec, const TrainOptions& train) {
  const auto is_frozen = [&train](const TensorSpec& tensor) {
    const auto group = std::ranges::find_if(train.groups, [&tensor](const ParameterGroup& other) {
      return Matches(other, tensor.name);
    });
    return group != train.groups.end() && group->freeze;
  };
  std::vector<UnitSpec> units = BuildUnits(spec);
  for (UnitSpec& unit : units) {
    unit.moments = MomentsOf(train.optimizer);
    unit.frozen = (!spec.adapters.empty() && unit.kind != UnitKind::kAdapter) ||
                  std::ranges::all_of(unit.tensors, is_frozen);
    unit.nf4 = unit.frozen && spec.quantize == Quantize::kNf4 && unit.kind == UnitKind::kBlock;
    unit.from_files = unit.frozen && spec.from_files;
  }
  return units;
}

}  // namespace shoal::plan
