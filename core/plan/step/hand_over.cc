#include "core/plan/step/hand_over.h"

#include <algorithm>

#include "core/base/check.h"

namespace shoal::plan {

std::vector<std::pair<int64_t, int>> HandOver(const StepPlan& plan,
                                              const std::vector<int64_t>& packs,
                                              const std::vector<bool>& absent) {
  std::vector<double> load;
  for (const std::vector<Microbatch>& microbatches : plan.workers) {
    double& cost = load.emplace_back(0);
    for (const Microbatch& microbatch : microbatches) {
      cost += microbatch.cost;
    }
  }
  std::vector<const Microbatch*> left;
  for (const int64_t pack : packs) {
    left.push_back(plan.Find(pack));
  }
  std::ranges::stable_sort(
      left, [](const Microbatch* a, const Microbatch* b) { return a->cost > b->cost; });
  std::vector<std::pair<int64_t, int>> given;
  for (const Microbatch* pack : left) {
    int taker = -1;
    for (size_t worker = 0; worker < load.size(); ++worker) {
      if (!absent[worker] && (taker < 0 || load[worker] < load[static_cast<size_t>(taker)])) {
        taker = static_cast<int>(worker);
      }
    }
    SHOAL_CHECK(taker >= 0);
    load[static_cast<size_t>(taker)] += pack->cost;
    given.emplace_back(pack->number, taker);
  }
  return given;
}

}  // namespace shoal::plan
