// When offloads and reloads run on their copy streams, for activations whose compute times are
// known: each offload as soon as the stream is free, each reload as late as its backward and those
// behind it allow. Pure; core/plan/schedule/builders/offload.h makes schedules of it.
#pragma once

#include <span>
#include <vector>

#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

struct CopyJob {
  int device = 0;    // 0, or 1 where two devices share a switch
  double ready = 0;  // its forward has ended
  double due = 0;    // its backward begins
  double offload = 0;
  double reload = 0;
};

struct PlannedCopy {
  bool moved = false;  // else its offload would not end before its reload has to begin
  double offload_begin = 0;
  double reload_begin = 0;
};

// By job. No two copies are at once what `streams` does not let be: those of one device, and of two
// devices behind a switch those of one direction. All that are moved are back when they are due.
std::vector<PlannedCopy> PlanCopies(std::span<const CopyJob> jobs, CopyStreams streams);

}  // namespace shoal::plan
