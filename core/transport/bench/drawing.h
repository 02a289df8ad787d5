// Pictures of benchmarks, as SVG: bandwidth by size and, beside it, latency; for gets, and for
// pushes where they were measured. One line for each transport, drawn wide, and for each limit or
// peer, dashed. Pure functions of what was measured; `shoal bench transport --svg` writes them.
#pragma once

#include <string>

#include "core/transport/bench/bench.h"
#include "core/transport/bench/compare.h"

namespace shoal::transport {

// Of the fewest clients that were measured.
std::string DrawBench(const BenchReport& report);
std::string DrawComparison(const ComparisonReport& report);

}  // namespace shoal::transport
