#include "plan/cost_model.h"

namespace shoal::plan {

SequenceCost TokenCost() {
  return [](int64_t tokens) { return static_cast<double>(tokens); };
}

SequenceCost FlopCost(const ModelSpec& spec) {
  // A forward and a backward pass, which costs twice as much.
  return [spec](int64_t tokens) { return 3.0 * ForwardFlops(spec, tokens); };
}

}  // namespace shoal::plan
