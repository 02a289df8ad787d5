// What a job recomputes or offloads whose workers hold the whole model, and that leaves it open
// (train.recompute, train.offload): the least with which it fits into memory. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/memory_plan.h"

namespace shoal::plan {

// Settles it for a local job whose steps run as no schedule yet, and returns a line that says so;
// nothing if the job fits as it is.
//
// - On CPUs, where there is no other memory to offload to: the least recompute that fits.
// - On GPUs: a budget for activations (cluster.pipeline.device_memory), by which the fastest of
//   recompute and offload that fits is chosen.
//
// ResourceExhausted with the figures if the job does not fit even so, or says what it recomputes
// and offloads, or is one whose steps cannot run as schedules.
absl::StatusOr<std::string> SettleRecompute(const ModelSpec& spec, Job& job,
                                            const MemoryBudget& budget);

}  // namespace shoal::plan
