// Decides which activations of a schedule go to host memory and back, and when: places offload,
// release, prepare and reload into the lists so that, by the given costs, no compute waits for
// them. Pure.
//
// 1. The schedule is timed (core/plan/schedule/builders/compute_times.h).
// 2. The copies of each device, or of two that share a switch, are planned
//    (core/plan/schedule/builders/copy_plan.h): offloads as early and reloads as late as the stream
//    allows.
// 3. If there are more activations to offload than the copies have time for, those that live
//    longest are chosen, as many as fit. One that gains nothing stays on the device: the plan gets
//    smaller, never an error.
//
// Copies begin no later than planned and each release stands where its copy has ended, so the
// schedule takes no longer than without offload if the costs hold. Devices that share a switch run
// copies as they become ready, not by the plan, and so wait for each other now and then.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/schedule/builders/compute_times.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

// What to offload, by stage and then chunk * microbatches + microbatch.
using OffloadChoice = std::vector<std::vector<bool>>;

// Chooses the first `chunks` chunks of every stage, which live longest: 2.25 means all microbatches
// of two chunks and every fourth of the third.
OffloadChoice FirstChunks(const ScheduleShape& shape, double chunks);

struct KeptOnDevice {
  int stage = 0;
  int chunk = 0;
  int microbatch = 0;
  bool lives_too_briefly = false;  // if false, there was no time for its copies
};

struct OffloadPlan {
  Schedule schedule;
  int64_t offloaded = 0;           // (stage, chunk, microbatch)
  std::vector<KeptOnDevice> kept;  // chosen, but left on the device

  // Says in one line what was offloaded, what was not and why.
  std::string Diagnosis() const;
};

// `schedule` must pass CheckSchedule and have no transfers yet; `times` are its LatestComputeTimes,
// which serve for any choice.
OffloadPlan AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                        std::span<const ComputeTimes> times, const OffloadChoice& choice,
                        CopyStreams streams);

// Same as above, computing the times itself. Fails only if the schedule waits forever.
absl::StatusOr<OffloadPlan> AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                                        const OffloadChoice& choice, CopyStreams streams = {});

}  // namespace shoal::plan
