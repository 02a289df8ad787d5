#include "core/plan/step/cost_model.h"

namespace shoal::plan {

CostModel TokenCost() { return {.per_token = 1}; }

CostModel ForwardCost(const ModelSpec& spec) {
  // ForwardFlops is a s + b s^2, so two values give both coefficients.
  const double one = ForwardFlops(spec, 1);
  const double two = ForwardFlops(spec, 2);
  const double squared = (two - 2 * one) / 2;
  return {.per_token = one - squared, .per_squared_token = squared};
}

CostModel FlopCost(const ModelSpec& spec) {
  // A backward pass costs twice as much, but for matrices that have adapters or stand beside some:
  // they have no gradient.
  const CostModel forward = ForwardCost(spec);
  const double passes = spec.adapters.empty() ? 3 : 2;
  return {.per_token = passes * forward.per_token + 3 * AdapterFlops(spec),
          .per_squared_token = 3 * forward.per_squared_token};
}

CostModel FlopCost(const Job& job, const ModelSpec& spec) {
  CostModel flops = FlopCost(spec);
  if (job.preference.reference == Reference::kAdapterOff) {
    const CostModel alone = ForwardCost(spec);
    flops.per_token += alone.per_token;
    flops.per_squared_token += alone.per_squared_token;
  }
  return flops;
}

double AdapterFlops(const ModelSpec& spec) {
  double elements = 0;
  for (const UnitSpec& unit : BuildUnits(spec)) {
    elements += unit.kind == UnitKind::kAdapter ? static_cast<double>(unit.count) : 0;
  }
  return 2 * elements;
}

}  // namespace shoal::plan
