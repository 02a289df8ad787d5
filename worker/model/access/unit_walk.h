// The walk of one microbatch over the units, without the mathematics: the same gets, releases,
// accumulators and Done calls, in the same order, as RunMicrobatch (runner.h) makes them. For empty
// microbatches and emulated devices; runner_test.cc compares the two orders.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "core/model/model_spec.h"
#include "worker/model/access/unit_access.h"

namespace shoal::worker {

// What is done at each unit while its weights are held.
class UnitWork {
 public:
  virtual ~UnitWork() = default;
  virtual void Forward(int unit) = 0;
  // Adds the unit's gradient to the accumulator, which is empty if it is not wanted.
  virtual void Backward(int unit, std::span<float> accumulator) = 0;
};

// `work` may be null: nothing is computed, and gradients stay zero; those of adapters do in any
// case.
absl::Status WalkUnits(const plan::ModelSpec& spec, UnitSource& source, GradientSink& sink,
                       UnitWork* work);

}  // namespace shoal::worker
