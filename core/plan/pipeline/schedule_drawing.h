// Draws a schedule as papers do: time to the right, a row for each stage, with one track for
// compute and one for copies. Colours show the operation, shades the chunk, numbers the microbatch;
// blank is idle. Draws spans, whether simulated or measured.
#pragma once

#include <cstddef>
#include <string>

#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

struct ScheduleDrawingOptions {
  std::string subtitle;   // where the times come from: "simulated", "measured on 4 workers", ...
  std::string time_unit;  // "s"; empty: units of time
  // Of all stages together. Of a longer schedule only the beginning is drawn, and the picture says
  // so.
  size_t max_spans = 20000;
};

// Returns an SVG document. `times` must be of this schedule: a list of spans for each of its
// stages.
std::string DrawSchedule(const Schedule& schedule, const ScheduleTimes& times,
                         const ScheduleDrawingOptions& options);

}  // namespace shoal::plan
