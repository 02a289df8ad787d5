// Plans when offloads and reloads run on their copy streams, for activations whose compute times
// are known: each offload as soon as the stream is free, each reload as late as its backward and
// later reloads allow. Pure; core/plan/schedule/builders/offload.h turns the plan into schedules.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

// The most that rounding may add to a sum of times.
inline double Rounding(double time) { return 1e-9 * std::abs(time); }

struct CopyJob {
  int device = 0;    // 0, or 1 if two devices share a switch
  double ready = 0;  // when its forward has ended
  double due = 0;    // when its backward begins
  double offload = 0;
  double reload = 0;
};

struct PlannedCopy {
  bool moved = false;  // if false, its offload would not end before its reload has to begin
  double offload_begin = 0;
  double reload_begin = 0;
};

// By job. No two copies run at once that `streams` forbids: those of one device and, for two
// devices behind a switch, those of one direction. Everything that is moved is back when due.
std::vector<PlannedCopy> PlanCopies(std::span<const CopyJob> jobs, CopyStreams streams);

}  // namespace shoal::plan
