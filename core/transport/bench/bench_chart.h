// A benchmark as a chart: bandwidth by size and, beside it, latency; for gets, and for pushes where
// they were measured. One line for each transport, drawn wide, and for each limit, dashed. Of the
// fewest clients that were measured. `shoal bench transport --svg` draws it.
#pragma once

#include "core/base/chart/gnuplot.h"
#include "core/transport/bench/bench.h"

namespace shoal::transport {

chart::Chart ChartOf(const BenchReport& report);

}  // namespace shoal::transport
