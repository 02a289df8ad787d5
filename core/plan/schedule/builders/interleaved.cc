// 1F1B and its interleaved form.
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"

namespace shoal::plan {

Schedule OneForwardOneBackward(int stages, int microbatches) {
  const ScheduleShape shape{.stages = stages, .chunks = 1, .microbatches = microbatches};
  const std::vector<PassItem> items = GroupedPass(shape, 1, false);
  std::vector<StageActions> lists;
  for (int stage = 0; stage < stages; ++stage) {
    lists.push_back(
        AlternatingStage(shape, items, items, stages - stage, /*split_backward=*/false));
  }
  return WithMessages("1F1B", shape, std::move(lists));
}

Schedule InterleavedOneForwardOneBackward(int stages, int chunks, int microbatches) {
  const ScheduleShape shape{.stages = stages, .chunks = chunks, .microbatches = microbatches};
  const std::vector<PassItem> forwards = GroupedPass(shape, stages, false);
  const std::vector<PassItem> backwards = GroupedPass(shape, stages, true);
  std::vector<StageActions> lists;
  for (int stage = 0; stage < stages; ++stage) {
    const int ahead = stages * (chunks - 1) + 2 * (stages - stage) - 1;
    lists.push_back(AlternatingStage(shape, forwards, backwards, ahead, /*split_backward=*/false));
  }
  return WithMessages("1F1B-I", shape, std::move(lists));
}

}  // namespace shoal::plan
