// A schedule as papers draw it: time to the right, a row for each stage, in it one lane for compute
// and one for copies. Colours say the operation, shades the chunk, numbers the microbatch; what is
// blank is idle. For what a simulation reckons and for what a run measured: both are spans.
#pragma once

#include <cstddef>
#include <string>

#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

struct ScheduleDrawingOptions {
  std::string subtitle;   // what costs these are: "simulated", "measured on 4 workers", ...
  std::string time_unit;  // "s"; empty: units of time
  // Of all stages together. Of a longer schedule the beginning is drawn, and the picture says so.
  size_t max_spans = 20000;
};

// An SVG document. `times` is of this schedule: a list of spans for each of its stages.
std::string DrawSchedule(const Schedule& schedule, const ScheduleTimes& times,
                         const ScheduleDrawingOptions& options);

}  // namespace shoal::plan
