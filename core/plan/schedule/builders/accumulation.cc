#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"

namespace shoal::plan {

Schedule GradientAccumulation(int chunks, int microbatches) {
  const ScheduleShape shape{.stages = 1, .chunks = chunks, .microbatches = microbatches};
  StageActions actions;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      actions.push_back({Operation::kForward, chunk, microbatch});
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      actions.push_back({Operation::kBackward, chunk, microbatch});
    }
  }
  return WithMessages("accumulation", shape, {actions});
}

}  // namespace shoal::plan
