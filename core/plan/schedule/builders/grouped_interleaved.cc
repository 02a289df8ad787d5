#include "core/base/check.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"
#include "fmt/format.h"

namespace shoal::plan {

int SmallestGroup(int stages) { return (stages + 1) / 2; }

Schedule GroupedInterleaved(int stages, int chunks, int microbatches, int group) {
  SHOAL_CHECK(group >= SmallestGroup(stages) && group <= stages);
  const ScheduleShape shape{.stages = stages, .chunks = chunks, .microbatches = microbatches};
  const std::vector<PassItem> forwards = GroupedPass(shape, group, false);
  const std::vector<PassItem> backwards = GroupedPass(shape, group, true);
  std::vector<StageActions> lists;
  for (int stage = 0; stage < stages; ++stage) {
    lists.push_back(AlternatingStage(shape, forwards, backwards,
                                     group * (chunks - 1) + stages - stage,
                                     /*split_backward=*/true));
  }
  std::string name = group == stages                  ? "GIS"
                     : group == SmallestGroup(stages) ? "GIS-H"
                                                      : fmt::format("GIS({})", group);
  return WithMessages(std::move(name), shape, std::move(lists));
}

}  // namespace shoal::plan
