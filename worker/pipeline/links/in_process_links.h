// Links between stages that are threads of one process: messages change hands without a copy. As
// strict as links between machines: room and slots are as many as the schedule's queues have, a
// message whose name differs from its receive is an error, and memory is filled with NaN once it
// holds no message. In tests messages may also be late: each arrives up to `longest_delay` after it
// could.
//
// Thread-safe. The links of all stages share the pipeline and must not outlive it. Closing one
// stage's links closes all.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

struct InProcessLinksOptions {
  absl::Duration longest_delay = absl::ZeroDuration();
  uint64_t seed = 1;
};

class InProcessPipeline {
 public:
  explicit InProcessPipeline(int stages, const InProcessLinksOptions& options = {});
  ~InProcessPipeline();

  StageLinks& links(int stage) { return *links_[static_cast<size_t>(stage)]; }

 private:
  class Queues;
  class Links;
  const std::unique_ptr<Queues> queues_;
  std::vector<std::unique_ptr<StageLinks>> links_;
};

}  // namespace shoal::worker
