#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"

namespace shoal::plan {

Schedule GPipe(int stages, int chunks, int microbatches) {
  const ScheduleShape shape{.stages = stages, .chunks = chunks, .microbatches = microbatches};
  const StageActions actions = AlternatingStage(shape, GroupedPass(shape, microbatches, false),
                                                GroupedPass(shape, microbatches, true),
                                                chunks * microbatches, /*split_backward=*/false);
  return WithMessages("GPipe", shape, std::vector<StageActions>(stages, actions));
}

}  // namespace shoal::plan
