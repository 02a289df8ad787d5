#include "core/plan/step/cost_model.h"

namespace shoal::plan {

CostModel TokenCost() { return {.per_token = 1}; }

CostModel FlopCost(const ModelSpec& spec) {
  // ForwardFlops is a s + b s^2, so two values give both coefficients. A backward pass costs twice
  // as much.
  const double one = ForwardFlops(spec, 1);
  const double two = ForwardFlops(spec, 2);
  const double squared = (two - 2 * one) / 2;
  return CostModel{.per_token = one - squared, .per_squared_token = squared}.Scaled(3);
}

}  // namespace shoal::plan
