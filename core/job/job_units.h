// The units of a job's model: which of them train follows from train.groups, and from here alone.
#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

// BuildUnits with the moments of train.optimizer, and with those frozen whose every tensor is of a
// frozen group. A unit with one that trains is not: servers keep what is frozen of it as it is.
// Where there are adapters, all else is, and blocks are in NF4, or all of it in files, where the
// model is.
std::vector<UnitSpec> JobUnits(const ModelSpec& spec, const TrainOptions& train);

}  // namespace shoal::plan
