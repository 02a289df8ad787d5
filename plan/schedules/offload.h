// Which activations of a schedule go to host memory and back, and when: offload, release, prepare
// and reload placed into the lists so that no compute waits for them by the given costs. Pure.
//
// The schedule is timed first. The forwards that a stage runs ahead of its first backward then
// begin as late as nobody waits for them, so that memory is taken late. Time is a grid of slots,
// each as long as the longest copy of the devices that share a switch; a device takes its slots in
// turn for offloads and reloads, its neighbour the other way round, so the two never copy in the
// same direction at once. Activations with the longest lifespan choose first: the first free slot
// behind their forward and the last that ends before their backward. One that gains nothing so, or
// for which no slot is left, stays on the device: a smaller plan, never an error. As copies begin
// no later than planned and each release stands where its copy has ended, the schedule takes no
// longer than without offload when the costs hold.
// Devices that share a switch run by what is ready and not by the grid, and then wait for each
// other here and there.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/schedule.h"
#include "plan/schedule_costs.h"
#include "plan/schedule_simulation.h"

namespace shoal::plan {

// What is to be offloaded, by stage and then chunk * microbatches + microbatch.
using OffloadChoice = std::vector<std::vector<bool>>;

// All microbatches of the first `chunks` chunks of every stage: those whose lifespan is longest.
OffloadChoice FirstChunks(const ScheduleShape& shape, int chunks);

struct KeptOnDevice {
  int stage = 0;
  int chunk = 0;
  int microbatch = 0;
  bool lives_too_briefly = false;  // else: its copies found no free slot in time
};

struct OffloadPlan {
  Schedule schedule;
  int64_t offloaded = 0;           // (stage, chunk, microbatch)
  std::vector<KeptOnDevice> kept;  // chosen and yet left on the device

  // One line: what was offloaded, what was not and why.
  std::string Diagnosis() const;
};

// `schedule` passes CheckSchedule and has no transfers yet. An error just where it waits for ever.
absl::StatusOr<OffloadPlan> AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                                        const OffloadChoice& choice, CopyStreams streams = {});

}  // namespace shoal::plan
