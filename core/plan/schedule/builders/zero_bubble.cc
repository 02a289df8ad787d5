#include <algorithm>
#include <utility>

#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"

namespace shoal::plan {
namespace {

// One chunk: `ahead` forwards, then alternately B and F, with the weights' backwards `behind`
// microbatches after their B.
StageActions WeightsBehind(int microbatches, int ahead, int behind) {
  StageActions actions;
  int forward = 0;
  int weights = 0;
  for (; forward < std::min(ahead, microbatches); ++forward) {
    actions.push_back({Operation::kForward, 0, forward});
  }
  for (int backward = 0; backward < microbatches; ++backward) {
    actions.push_back({Operation::kBackwardInput, 0, backward});
    // When no forward is left, the weights' backwards fill the wait for the next gradient.
    if (backward >= behind || forward == microbatches) {
      actions.push_back({Operation::kBackwardWeights, 0, weights++});
    }
    if (forward < microbatches) {
      actions.push_back({Operation::kForward, 0, forward++});
    }
  }
  for (; weights < microbatches; ++weights) {
    actions.push_back({Operation::kBackwardWeights, 0, weights});
  }
  return actions;
}

// With `each` times the forwards ahead and the weights behind of H1.
Schedule ZeroBubble(std::string name, int stages, int microbatches, int each) {
  std::vector<StageActions> lists;
  for (int stage = 0; stage < stages; ++stage) {
    lists.push_back(
        WeightsBehind(microbatches, each * (stages - stage) - (each - 1), each * stage));
  }
  return WithMessages(std::move(name), {stages, /*chunks=*/1, microbatches}, std::move(lists));
}

}  // namespace

Schedule ZeroBubbleH1(int stages, int microbatches) {
  return ZeroBubble("ZB-H1", stages, microbatches, 1);
}
Schedule ZeroBubbleH2(int stages, int microbatches) {
  return ZeroBubble("ZB-H2", stages, microbatches, 2);
}

}  // namespace shoal::plan
