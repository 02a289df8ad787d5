#include "server/coordinator/step/worker_groups.h"

#include <algorithm>

#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal::server {

WorkerGroups::WorkerGroups(size_t workers, int64_t stages)
    : stages_(static_cast<size_t>(stages)), groups_(workers / stages_) {
  SHOAL_CHECK(stages > 0 && workers % stages_ == 0);
}

std::string WorkerGroups::Place(size_t worker) const {
  return stages_ == 1 ? "" : fmt::format("stage {} of group {}", StageOf(worker), GroupOf(worker));
}

size_t WorkerGroups::PaceOf(size_t group, std::span<const double> busy_seconds) const {
  const auto stages = busy_seconds.subspan(WorkerAt(group, 0), stages_);
  return WorkerAt(group, static_cast<size_t>(std::ranges::max_element(stages) - stages.begin()));
}

}  // namespace shoal::server
