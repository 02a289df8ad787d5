#include "server/coordinator/step/skipped_step.h"

#include <algorithm>

#include "fmt/format.h"

namespace shoal::server {
namespace {

constexpr int64_t kFewestSteps = 10;       // before there is a mean to speak of
constexpr int64_t kMostSkippedInARow = 2;  // what is wrong with a third does not pass

}  // namespace

std::string WhySkipped(const plan::SkipStepOptions& options, const proto::GradientNorms& norms,
                       const StepTotals& totals) {
  if (const std::string what = NonFinite(totals); !what.empty()) {
    return options.nonfinite ? what : "";
  }
  if (options.norm_factor > 0 && norms.steps() >= kFewestSteps &&
      totals.grad_norm > options.norm_factor * norms.mean()) {
    return fmt::format("the gradient norm is {:.4g}, and {:.4g} in the mean", totals.grad_norm,
                       norms.mean());
  }
  return "";
}

std::string WhyFatal(const plan::SkipStepOptions& options, const proto::GradientNorms& norms,
                     const StepTotals& totals) {
  const std::string skipped = WhySkipped(options, norms, totals);
  if (skipped.empty()) {
    return NonFinite(totals);
  }
  return norms.skipped_in_a_row() < kMostSkippedInARow
             ? ""
             : skipped + ", as in the two before it, which were skipped";
}

proto::GradientNorms AddStep(const plan::SkipStepOptions& options, proto::GradientNorms norms,
                             double grad_norm, bool skipped) {
  if (skipped) {
    norms.set_skipped_in_a_row(norms.skipped_in_a_row() + 1);
    return norms;
  }
  norms.set_skipped_in_a_row(0);
  norms.set_steps(norms.steps() + 1);
  const auto steps = static_cast<double>(std::min(norms.steps(), options.window));
  norms.set_mean(norms.mean() + (grad_norm - norms.mean()) / steps);
  return norms;
}

}  // namespace shoal::server
