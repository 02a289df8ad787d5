// `shoal plot` and `shoal compare`: pictures and differences of runs, from their records.
#pragma once

#include <string>
#include <vector>

#include "cli/record/run_history.h"
#include "cli/run/command.h"
#include "core/base/chart/gnuplot.h"

namespace shoal::cli {

struct PlotOptions {
  std::vector<std::string> runs;  // as ReadRunHistory takes them
  std::string output;             // empty: plot.svg in the record of the first
};
absl::StatusOr<ExitCode> RunPlot(const PlotOptions& options, Streams& streams);
// Loss with what happened, gradient norm, learning rate, tokens/s, idle share; of one run also what
// its time went to and, where servers came and went, what moved.
chart::Chart PlotOf(const std::vector<RunHistory>& runs);

struct CompareOptions {
  std::vector<std::string> runs;  // two or more; all are compared with the first
  double tolerance = 0;           // of losses, relative
  bool json = false;
};
absl::StatusOr<ExitCode> RunCompare(const CompareOptions& options, Streams& streams);

// The first step whose losses differ by more than `tolerance`, relative to the larger; nullopt if
// none of the steps that both have does.
std::optional<int64_t> FirstDifference(const RunHistory& first, const RunHistory& second,
                                       double tolerance);

}  // namespace shoal::cli
