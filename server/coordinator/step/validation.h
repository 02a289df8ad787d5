// What follows from a validation's loss. Pure functions.
#pragma once

#include <optional>

#include "core/job/job.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

// Fills in what `result`, of which the loss and the step are known, means after those before, of
// which `newest` is the last.
void Judge(const std::optional<proto::ValidationEvent>& newest, double minimum_change,
           proto::ValidationEvent& result);

// Whether so many have brought nothing better that the job is over.
bool EndsEarly(const std::optional<proto::ValidationEvent>& newest,
               const plan::EarlyStopOptions& options);

}  // namespace shoal::server
