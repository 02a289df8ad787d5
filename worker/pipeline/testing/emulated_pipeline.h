// A pipeline of emulated stages in one process, one thread each: for tests of the runtime and for
// measurements of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/time_kind_clock.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/pipeline/stage_runner.h"

namespace shoal::worker {

struct EmulatedPipelineOptions {
  CpuCopyOptions copies;
  bool duplex = false;
  bool poison = true;
  int64_t device_budget_bytes = 0;  // of each stage
  int64_t host_budget_bytes = 0;
  absl::Duration wait_timeout = absl::Seconds(30);
  // A unit of the costs' time on the clock.
  double seconds_per_unit = 1;
  int64_t message_bytes = 640;
  bool tied_embeddings = false;
};

using StageReports = std::vector<absl::StatusOr<StageReport>>;

class EmulatedPipeline {
 public:
  // Uses everything of the shape except the microbatches.
  EmulatedPipeline(const plan::ScheduleShape& shape, const EmulatedPipelineOptions& options);
  ~EmulatedPipeline();

  // Runs a step on all stages concurrently. `links` by stage.
  StageReports RunStep(const plan::Schedule& schedule, const plan::ScheduleCosts& costs,
                       const std::vector<StageLinks*>& links, bool record_spans = false);
  // Runs one stage, in the calling thread.
  absl::StatusOr<StageReport> RunStage(int stage, const plan::Schedule& schedule,
                                       const plan::ScheduleCosts& costs, StageLinks* links,
                                       bool record_spans = false);
  // Starts another step; attempts of a step that failed count up.
  void NextStep() { ++step_; }
  void NextAttempt() { ++attempt_; }

  StageRunner& runner(int stage) { return *stages_[static_cast<size_t>(stage)]->runner; }
  int stages() const { return static_cast<int>(stages_.size()); }
  // Microbatches may differ in length.
  int64_t MessageBytes(int microbatch) const {
    return options_.message_bytes * (1 + microbatch % 3);
  }
  // Of all stages together since the last call, which a whole step makes 1 everywhere. Describes
  // the first element that is not; empty if there is none.
  std::string GradientsOtherThanOne();

 private:
  struct Stage {
    std::unique_ptr<Device> device;
    std::unique_ptr<Memory> host;
    std::unique_ptr<Stream> compute;
    std::unique_ptr<StageModel> model;
    std::unique_ptr<TimeKindClock> time_kinds;
    std::unique_ptr<MemoryUnitSource> source;
    std::unique_ptr<MemoryGradientSink> sink;
    std::unique_ptr<StageRunner> runner;
    const plan::ScheduleCosts* costs = nullptr;  // of the current step
  };
  void MakeStage(int index, const plan::ScheduleShape& shape, const plan::ModelSpec& spec,
                 const std::vector<plan::UnitRange>& split);

  const EmulatedPipelineOptions options_;
  std::vector<std::unique_ptr<Stage>> stages_;
  int64_t step_ = 1;
  int64_t attempt_ = 0;
};

// Stages' links of an InProcessPipeline and the like.
template <typename Links>
std::vector<StageLinks*> AllLinks(Links& links, int stages) {
  std::vector<StageLinks*> all;
  for (int stage = 0; stage < stages; ++stage) {
    all.push_back(&links.links(stage));
  }
  return all;
}

}  // namespace shoal::worker
