// Write the parts of the report, each from its results.
#pragma once

#include <vector>

#include "bench/on_demand/break_even.h"
#include "bench/on_demand/emulated.h"
#include "bench/on_demand/real.h"
#include "bench/on_demand/simulated.h"
#include "bench/report/report.h"

namespace shoal::bench {

inline constexpr const char* kHeatLegend = "red: slower than the baseline, blue: faster";

// Any may be empty.
struct Results {
  std::vector<SimulatedConfig> simulated;
  std::vector<EmulatedConfig> emulated;  // golden and slow device first, if run
  std::vector<BreakEvenMap> break_even;
  std::vector<RealRun> real;

  const SimulatedConfig* Simulated(const Config& config) const;
  const EmulatedConfig* Emulated(const Config& config) const;
};

// Adds the emulated golden config and slow device, with the bars of both.
void AddGolden(const Results& results, Report& report);
// Adds charts and tables by parameter, simulated and emulated.
void AddSweeps(const Results& results, Report& report);
// Adds datasets by shapes.
void AddShapes(const Results& results, Report& report);
void AddPaper(const Results& results, Report& report);
void AddBreakEven(const Results& results, Report& report);
// Compares emulated with simulated, measured idle with predicted: all configs, and the bars.
void AddAgreement(const Results& results, Report& report);
void AddReal(const Results& results, Report& report);

}  // namespace shoal::bench
