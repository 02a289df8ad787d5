// Figures that the ODC paper (arXiv 2601.19362) and AMD's port of it report. Most of the paper's
// are second-hand and read off charts, so approximate.
#pragma once

#include <string>
#include <vector>

#include "bench/on_demand/config.h"
#include "core/sim/comparison.h"

namespace shoal::bench {

struct PaperFigure {
  std::string source;  // "ODC, figure 8"
  Config config;
  sim::Choice choice;
  sim::Choice baseline;
  double ratio = 0;     // throughput of `choice` over that of `baseline`
  std::string because;  // why ours differs, if it does
};
std::vector<PaperFigure> SpeedUpsOfPaper();

struct PaperBubble {
  std::string source;
  Config config;
  sim::Choice choice;
  double idle_share = 0;
  std::string because;
};
std::vector<PaperBubble> BubblesOfPaper();

// AMD's port over collectives.
struct AmdRatio {
  Config config;
  double ratio = 0;
};
std::vector<AmdRatio> AmdRatios();

}  // namespace shoal::bench
