// A model on an emulated device (plan::EmulateOptions): walks over the units of a small model with
// real gets and pushes, and at each takes as long as a device would with a model of another shape.
//
// Computed values are made up: the loss of every target is 1, and every element of a microbatch's
// gradient is its number of targets times the loss scale. So over a step each element of the sum is
// 1 exactly if every sample ran once, on any worker: a grad_norm other than the root of the number
// of parameters reveals a lost or doubled push.
#pragma once

#include <memory>

#include "core/base/clock.h"
#include "core/job/job.h"
#include "worker/model/microbatch_model.h"

namespace shoal::worker {

// `spec` is of the weights that travel; `worker` selects its own entry of options.speeds.
std::unique_ptr<MicrobatchModel> MakeEmulatedModel(const plan::ModelSpec& spec,
                                                   const plan::EmulateOptions& options, int worker,
                                                   Clock& clock);

}  // namespace shoal::worker
