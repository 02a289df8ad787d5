#include "core/plan/step/prediction.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"

namespace shoal::plan {

StepPrediction Predict(const StepPlan& plan, Synchronization synchronization,
                       std::span<const double> speeds, const std::optional<CostModel>& cost) {
  SHOAL_CHECK(speeds.empty() || speeds.size() == plan.workers.size());
  StepPrediction prediction;
  std::vector<double> slowest;  // of the m-th microbatches
  for (size_t worker = 0; worker < plan.workers.size(); ++worker) {
    const std::vector<Microbatch>& microbatches = plan.workers[worker];
    double& busy = prediction.busy.emplace_back(0.0);
    slowest.resize(std::max(slowest.size(), microbatches.size()), 0.0);
    for (size_t m = 0; m < microbatches.size(); ++m) {
      const double price = cost.has_value() ? cost->Microbatch(microbatches[m].tokens,
                                                               microbatches[m].squared_tokens)
                                            : microbatches[m].cost;
      const double time = price / (speeds.empty() ? 1.0 : speeds[worker]);
      busy += time;
      slowest[m] = std::max(slowest[m], time);
    }
    prediction.step_time = std::max(prediction.step_time, busy);
  }
  if (synchronization == Synchronization::kLayer) {
    prediction.step_time = std::accumulate(slowest.begin(), slowest.end(), 0.0);
  }
  if (prediction.step_time > 0) {
    const double busy = std::accumulate(prediction.busy.begin(), prediction.busy.end(), 0.0);
    prediction.idle_share =
        1 - busy / (prediction.step_time * static_cast<double>(prediction.busy.size()));
  }
  return prediction;
}

}  // namespace shoal::plan
