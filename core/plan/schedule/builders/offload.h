// Which activations of a schedule go to host memory and back, and when: offload, release, prepare
// and reload placed into the lists so that no compute waits for them by the given costs. Pure.
//
// The schedule is timed first (core/plan/schedule/builders/compute_times.h). Then the copies of
// each device, or of two that share a switch, are planned
// (core/plan/schedule/builders/copy_plan.h): offloads as early and reloads as late as the stream
// lets them. Where there are more activations to offload than the copies have time for, those that
// live longest are chosen, as many as fit. One that gains nothing stays on the device: a smaller
// plan, never an error. As copies begin no later than planned and each release stands where its
// copy has ended, the schedule takes no longer than without offload when the costs hold. Devices
// that share a switch run by what is ready and not by the plan, and then wait for each other here
// and there.
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

// What is to be offloaded, by stage and then chunk * microbatches + microbatch.
using OffloadChoice = std::vector<std::vector<bool>>;

// The first `chunks` chunks of every stage, those whose lifespan is longest: 2.25 are all
// microbatches of two and every fourth of the third.
OffloadChoice FirstChunks(const ScheduleShape& shape, double chunks);

struct KeptOnDevice {
  int stage = 0;
  int chunk = 0;
  int microbatch = 0;
  bool lives_too_briefly = false;  // else: there was no time for its copies
};

struct OffloadPlan {
  Schedule schedule;
  int64_t offloaded = 0;           // (stage, chunk, microbatch)
  std::vector<KeptOnDevice> kept;  // chosen and yet left on the device

  // One line: what was offloaded, what was not and why.
  std::string Diagnosis() const;
};

// `schedule` passes CheckSchedule and has no transfers yet; `times` are its LatestComputeTimes,
// which serve for any choice.
OffloadPlan AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                        std::span<const ComputeTimes> times, const OffloadChoice& choice,
                        CopyStreams streams);

// The same with its own times. An error just where the schedule waits for ever.
absl::StatusOr<OffloadPlan> AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                                        const OffloadChoice& choice, CopyStreams streams = {});

}  // namespace shoal::plan
