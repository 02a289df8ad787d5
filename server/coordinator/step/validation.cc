#include "server/coordinator/step/validation.h"

namespace shoal::server {

void Judge(const std::optional<proto::ValidationEvent>& newest, double minimum_change,
           proto::ValidationEvent& result) {
  const bool lowest = !newest.has_value() || result.loss() < newest->best_loss();
  const bool better = !newest.has_value() || result.loss() < newest->best_loss() - minimum_change;
  result.set_best_loss(lowest ? result.loss() : newest->best_loss());
  result.set_best_step(lowest ? result.step() : newest->best_step());
  result.set_since_best(better ? 0 : newest->since_best() + 1);
}

bool EndsEarly(const std::optional<proto::ValidationEvent>& newest,
               const plan::EarlyStopOptions& options) {
  return options.patience > 0 && newest.has_value() && newest->since_best() >= options.patience;
}

}  // namespace shoal::server
