#include "core/plan/schedule/stage_units.h"

#include "core/base/check.h"
#include "core/model/adapters.h"

namespace shoal::plan {
namespace {

int HeadUnit(const ModelSpec& spec) { return static_cast<int>(spec.layers) + 1; }

// Of a block, if it has any; -1 of other units.
int AdaptersOf(const ModelSpec& spec, int unit) {
  return unit >= 1 && unit < HeadUnit(spec) ? AdapterUnit(spec, unit - 1) : -1;
}

void Use(const ModelSpec& spec, int unit, std::vector<int>& uses) {
  uses.push_back(unit);
  if (const int adapters = AdaptersOf(spec, unit); adapters >= 0) {
    uses.push_back(adapters);
  }
}

size_t UnitCount(const ModelSpec& spec) {
  const int last =
      spec.adapters.empty() ? HeadUnit(spec) : AdapterUnit(spec, spec.adapters.back().layer);
  return static_cast<size_t>(last) + 1;
}

}  // namespace

UnitRange AllUnits(const ModelSpec& spec) { return {0, HeadUnit(spec) + 1}; }

std::vector<int> ForwardUses(const ModelSpec& spec, UnitRange chunk) {
  std::vector<int> uses;
  for (int unit = chunk.first; unit < chunk.end() && unit != HeadUnit(spec); ++unit) {
    Use(spec, unit, uses);
  }
  return uses;
}

std::vector<int> BackwardUses(const ModelSpec& spec, UnitRange chunk) {
  std::vector<int> uses;
  for (int unit = chunk.end() - 1; unit >= chunk.first && unit > 0; --unit) {
    Use(spec, unit, uses);
    if (unit == HeadUnit(spec) && spec.tied_embeddings) {
      uses.push_back(0);
    }
  }
  return uses;
}

std::vector<int> EvaluationUses(const ModelSpec& spec, UnitRange chunk) {
  std::vector<int> uses = ForwardUses(spec, chunk);
  if (chunk.contains(HeadUnit(spec))) {
    const std::vector<int> loss = BackwardUses(spec, {HeadUnit(spec), 1});
    uses.insert(uses.end(), loss.begin(), loss.end());
  }
  return uses;
}

std::vector<int> StageUseOrder(const ModelSpec& spec, const StageActions& actions,
                               std::span<const UnitRange> chunks, bool evaluates) {
  std::vector<std::vector<int>> forward;
  std::vector<std::vector<int>> backward;
  for (const UnitRange& chunk : chunks) {
    forward.push_back(evaluates ? EvaluationUses(spec, chunk) : ForwardUses(spec, chunk));
    backward.push_back(BackwardUses(spec, chunk));
  }
  std::vector<int> order;
  for (const Action& action : actions) {
    const auto chunk = static_cast<size_t>(action.chunk);
    SHOAL_CHECK(chunk < chunks.size());
    if (action.operation == Operation::kForward) {
      order.insert(order.end(), forward[chunk].begin(), forward[chunk].end());
    } else if (IsBackwardForInput(action.operation)) {
      order.insert(order.end(), backward[chunk].begin(), backward[chunk].end());
    }
  }
  return order;
}

std::vector<int> StageContributions(const ModelSpec& spec, std::span<const UnitRange> chunks) {
  std::vector<int> contributions(UnitCount(spec), 0);
  for (const UnitRange& chunk : chunks) {
    for (int unit = chunk.first; unit < chunk.end(); ++unit) {
      ++contributions[static_cast<size_t>(unit)];
      if (const int adapters = AdaptersOf(spec, unit); adapters >= 0) {
        ++contributions[static_cast<size_t>(adapters)];
      }
    }
    if (chunk.contains(HeadUnit(spec)) && spec.tied_embeddings) {
      ++contributions[0];
    }
  }
  return contributions;
}

std::vector<int> TrainedContributions(std::span<const UnitSpec> units,
                                      std::vector<int> contributions) {
  for (const UnitSpec& unit : units) {
    contributions[static_cast<size_t>(unit.index)] *= unit.frozen ? 0 : 1;
  }
  return contributions;
}

}  // namespace shoal::plan
