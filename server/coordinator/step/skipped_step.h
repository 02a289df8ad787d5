// Steps that change no weight, because of their gradients (train.skip_step). Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "core/job/job.h"
#include "proto/event.pb.h"
#include "server/coordinator/step/step_result.h"

namespace shoal::server {

// Why the step is to be skipped; empty: it is not. `norms` are of the steps before it.
std::string WhySkipped(const plan::SkipStepOptions& options, const proto::GradientNorms& norms,
                       const StepTotals& totals);

// Why the step ends the job: it is not finite and not to be skipped, or the third in a row that is.
// Empty: it does not.
std::string WhyFatal(const plan::SkipStepOptions& options, const proto::GradientNorms& norms,
                     const StepTotals& totals);

// Returns the norms up to that step.
proto::GradientNorms AddStep(const plan::SkipStepOptions& options, proto::GradientNorms norms,
                             double grad_norm, bool skipped);

}  // namespace shoal::server
