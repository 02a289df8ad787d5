#include <algorithm>
#include <array>
#include <fstream>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/record/record_commands.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::cli {
namespace {

// Bytes of state that changed servers before this step.
double MovedBefore(const RunHistory& run, double step) {
  for (const RunHistory::Placement& placement : run.placements) {
    if (static_cast<double>(placement.step) == step) {
      return static_cast<double>(placement.moved_bytes);
    }
  }
  return 0;
}

// Distinct also for people who see few colours.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#57606a"};

using Points = std::vector<std::pair<double, double>>;

// Means of as many neighbours as a picture can show.
Points Thinned(const Points& points) {
  constexpr size_t kMost = 400;
  const size_t group = (points.size() + kMost - 1) / kMost;
  Points thinned;
  for (size_t i = 0; i < points.size(); i += std::max<size_t>(group, 1)) {
    const size_t end = std::min(points.size(), i + group);
    double x = 0;
    double y = 0;
    for (size_t k = i; k < end; ++k) {
      x += points[k].first;
      y += points[k].second;
    }
    thinned.emplace_back(x / static_cast<double>(end - i), y / static_cast<double>(end - i));
  }
  return thinned;
}

chart::Panel PanelOf(const std::vector<RunHistory>& runs, const std::string& key,
                     const std::string& title, const std::string& y_label) {
  chart::Panel panel{.title = title, .x_label = "step", .y_label = y_label};
  for (size_t i = 0; i < runs.size(); ++i) {
    panel.curves.push_back({.name = runs[i].name,
                            .colour = kColours[i % kColours.size()],
                            .width = 1.5,
                            .points = Thinned(CurveOf(runs[i], key))});
  }
  return panel;
}

// Beside the loss on what is trained on, in the same colour.
void AddValidation(const std::vector<RunHistory>& runs, chart::Panel& panel) {
  for (size_t i = 0; i < runs.size(); ++i) {
    Points points = CurveOf(runs[i], "validation_loss");
    if (!points.empty()) {
      panel.curves.push_back(
          {.name = runs.size() == 1 ? "validation" : runs[i].name + ", validation",
           .colour = kColours[i % kColours.size()],
           .style = chart::Curve::Style::kDashes,
           .points = std::move(points)});
    }
  }
}

// On the curve of the loss, at the last step before.
void AddMarks(const RunHistory& run, chart::Panel& panel) {
  const Points losses = CurveOf(run, "loss");
  // A later one hides an earlier one at the same place: a loss says more than that the run failed.
  const std::array<std::pair<const char*, const char*>, 5> kinds = {
      {{"failed", "#000000"},
       {"failed checkpoint", "#9467bd"},
       {"stop", "#e69f00"},
       {"resume", "#009e73"},
       {"lost", "#d62728"}}};
  for (const auto& [kind, colour] : kinds) {
    Points points;
    for (const RunHistory::Mark& mark : run.marks) {
      const auto after = std::ranges::upper_bound(losses, static_cast<double>(mark.step), {},
                                                  &std::pair<double, double>::first);
      if (mark.kind == kind && !losses.empty()) {
        points.push_back(after == losses.begin() ? losses.front() : *std::prev(after));
      }
    }
    if (!points.empty()) {
      panel.curves.push_back({.name = kind,
                              .colour = colour,
                              .style = chart::Curve::Style::kRings,
                              .points = std::move(points)});
    }
  }
}

chart::Panel TimePanel(const RunHistory& run) {
  chart::Panel panel{.title = "What workers' time went to",
                     .x_label = "step",
                     .y_label = "share of the step",
                     .from_zero = true};
  std::map<std::string, Points> shares;
  for (const RunHistory::Step& step : run.steps) {
    for (const auto& [name, share] : step.time_shares) {
      shares[name].emplace_back(static_cast<double>(step.step), share);
    }
  }
  size_t colour = 0;
  for (const auto& [name, points] : shares) {
    if (std::ranges::any_of(points, [](const auto& point) { return point.second > 0; })) {
      panel.curves.push_back({.name = name,
                              .colour = kColours[colour++ % kColours.size()],
                              .width = 1.5,
                              .points = Thinned(points)});
    }
  }
  return panel;
}

// How many partitions each server held: a point before and after each change, so that lines are
// level in between; the last goes on to the end.
chart::Panel PlacementPanel(const RunHistory& run) {
  chart::Panel panel{.title = "Partitions by server",
                     .x_label = "step",
                     .y_label = "partitions held",
                     .from_zero = true};
  size_t servers = 0;
  for (const RunHistory::Placement& placement : run.placements) {
    servers = std::max(servers, placement.partitions.size());
  }
  for (size_t server = 0; server < servers; ++server) {
    Points points;
    for (size_t i = 0; i < run.placements.size(); ++i) {
      const RunHistory::Placement& placement = run.placements[i];
      const int64_t last =
          i + 1 < run.placements.size() ? run.placements[i + 1].step : run.steps.back().step;
      const double held = server < placement.partitions.size()
                              ? static_cast<double>(placement.partitions[server])
                              : 0;
      points.emplace_back(static_cast<double>(placement.step), held);
      points.emplace_back(static_cast<double>(last), held);
    }
    panel.curves.push_back({.name = fmt::format("server {}", server),
                            .colour = kColours[server % kColours.size()],
                            .width = 1.5,
                            .points = std::move(points)});
  }
  return panel;
}

// Steps, and what stood between them where state moved.
chart::Panel PausePanel(const RunHistory& run) {
  chart::Panel panel{.title = "Steps, and pauses while state moves",
                     .x_label = "step",
                     .y_label = "seconds",
                     .from_zero = true};
  panel.curves.push_back({.name = "step",
                          .colour = kColours[0],
                          .width = 1.5,
                          .points = Thinned(CurveOf(run, "step_seconds"))});
  Points pauses;
  for (const auto& [step, seconds] : CurveOf(run, "pause_seconds")) {
    if (MovedBefore(run, step) > 0) {
      pauses.emplace_back(step, seconds);
    }
  }
  panel.curves.push_back({.name = "pause",
                          .colour = kColours[1],
                          .style = chart::Curve::Style::kMarks,
                          .points = std::move(pauses)});
  return panel;
}

chart::Panel MovedPanel(const RunHistory& run) {
  constexpr double kMegabyte = 1e6;
  chart::Panel panel{.title = "State moved",
                     .x_label = "step",
                     .y_label = "MB before the step",
                     .from_zero = true};
  Points points;
  for (const RunHistory::Step& step : run.steps) {
    const double bytes = MovedBefore(run, static_cast<double>(step.step));
    if (bytes > 0) {
      points.emplace_back(static_cast<double>(step.step), bytes / kMegabyte);
    }
  }
  panel.curves.push_back({.name = "moved",
                          .colour = kColours[3],
                          .style = chart::Curve::Style::kMarks,
                          .points = std::move(points)});
  return panel;
}

}  // namespace

chart::Chart PlotOf(const std::vector<RunHistory>& runs) {
  std::vector<chart::Panel> panels = {
      PanelOf(runs, "loss", "Loss", "mean over target tokens"),
      PanelOf(runs, "grad_norm", "Gradient norm", "before clipping"),
      PanelOf(runs, "learning_rate", "Learning rate", "learning rate"),
      PanelOf(runs, "tokens_per_second", "Speed", "tokens/s"),
      PanelOf(runs, "idle_share", "Idle share of workers", "share of the step")};
  if (std::ranges::any_of(runs, [](const auto& run) { return !CurveOf(run, "mfu").empty(); })) {
    panels.push_back(PanelOf(runs, "mfu", "MFU", "share of what devices can compute"));
  }
  AddValidation(runs, panels.front());
  for (const RunHistory& run : runs) {
    AddMarks(run, panels.front());
  }
  for (chart::Panel& panel : panels) {
    panel.from_zero = panel.title != "Loss";
  }
  if (runs.size() == 1) {
    const RunHistory& run = runs.front();
    panels.push_back(TimePanel(run));
    if (run.placements.size() > 1) {
      for (const auto& panel_of : {PlacementPanel, PausePanel, MovedPanel}) {
        panels.push_back(panel_of(run));
      }
    }
  }
  return chart::LineChart(runs.size() == 1 ? runs.front().name : "Runs", panels);
}

absl::StatusOr<ExitCode> RunPlot(const PlotOptions& options, Streams& streams) {
  std::vector<RunHistory> runs;
  for (const std::string& path : options.runs) {
    SHOAL_ASSIGN_OR_RETURN(runs.emplace_back(), ReadRunHistory(path));
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string svg, chart::RenderSvg(PlotOf(runs)));
  const std::string output =
      options.output.empty() ? runs.front().folder + "/plot.svg" : options.output;
  SHOAL_RETURN_IF_ERROR(Annotate(WriteFileAtomically(output, svg), "--output"));
  streams.out << output << std::endl;
  return ExitCode::kDone;
}

void AddPlot(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command = AddCommand(app, "plot", "Draw runs: loss, speed, where the time went",
                                 "shoal plot checkpoints --output run.svg");
  command
      ->add_option("runs", options->runs, "Checkpoint directories, or records of runs, to overlay")
      ->required();
  command->add_option("--output", options->output,
                      "SVG file to write (default: plot.svg in the first run's record)");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunPlot(*options, streams); };
  });
}

}  // namespace shoal::cli
