#include <algorithm>
#include <cmath>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/record/record_commands.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

struct LossPair {
  int64_t step = 0;
  double first = 0;
  double second = 0;
};

// Of the steps that both have.
std::vector<LossPair> Losses(const RunHistory& first, const RunHistory& second) {
  std::map<double, double> others;
  for (const auto& [step, loss] : CurveOf(second, "loss")) {
    others[step] = loss;
  }
  std::vector<LossPair> pairs;
  for (const auto& [step, loss] : CurveOf(first, "loss")) {
    if (const auto found = others.find(step); found != others.end()) {
      pairs.push_back({static_cast<int64_t>(step), loss, found->second});
    }
  }
  return pairs;
}

double MedianSpeed(const RunHistory& run) {
  std::vector<double> speeds;
  for (const auto& [step, speed] : CurveOf(run, "tokens_per_second")) {
    speeds.push_back(speed);
  }
  if (speeds.empty()) {
    return 0;
  }
  const auto middle = speeds.begin() + std::ssize(speeds) / 2;
  std::ranges::nth_element(speeds, middle);
  return *middle;
}

std::vector<plan::JobDifference> JobDifferences(const RunHistory& first, const RunHistory& second) {
  return first.job.has_value() && second.job.has_value()
             ? plan::Differences(*first.job, *second.job)
             : std::vector<plan::JobDifference>();
}

std::string TableOf(const std::vector<LossPair>& losses, const Terminal& terminal) {
  constexpr size_t kRows = 12;
  Table table({{"step", Table::Align::kRight},
               {"loss", Table::Align::kRight},
               {"loss", Table::Align::kRight},
               {"difference", Table::Align::kRight}});
  const size_t stride = std::max<size_t>(1, (losses.size() + kRows - 1) / kRows);
  for (size_t i = 0; i < losses.size(); ++i) {
    if (i % stride == 0 || i + 1 == losses.size()) {
      const LossPair& pair = losses[i];
      table.Add({WithThousands(pair.step), fmt::format("{:.6f}", pair.first),
                 fmt::format("{:.6f}", pair.second),
                 fmt::format("{:+.2e}", pair.second - pair.first)});
    }
  }
  return table.Render(terminal);
}

void ShowPair(const RunHistory& first, const RunHistory& second, const CompareOptions& options,
              Streams& streams) {
  const std::vector<plan::JobDifference> differences = JobDifferences(first, second);
  const std::vector<LossPair> losses = Losses(first, second);
  const std::optional<int64_t> differs = FirstDifference(first, second, options.tolerance);
  if (options.json) {
    nlohmann::json keys = nlohmann::json::array();
    for (const plan::JobDifference& key : differences) {
      keys.push_back({{"key", key.key}, {"first", key.first}, {"second", key.second}});
    }
    PrintJson(streams.out,
              {{"event", "compared"},
               {"first", first.name},
               {"second", second.name},
               {"job", keys},
               {"steps", losses.size()},
               {"first_difference", differs.has_value() ? nlohmann::json(*differs) : nullptr},
               {"tokens_per_second", {MedianSpeed(first), MedianSpeed(second)}}});
    return;
  }
  streams.out << first.name << " and " << second.name << "\n";
  for (const plan::JobDifference& key : differences) {
    streams.out << fmt::format("  {}: {} | {}\n", key.key, key.first.empty() ? "none" : key.first,
                               key.second.empty() ? "none" : key.second);
  }
  if (differences.empty()) {
    streams.out << (first.job.has_value() && second.job.has_value()
                        ? "  the same job\n"
                        : "  the jobs cannot be compared: a record has no job.yaml\n");
  }
  streams.out << TableOf(losses, streams.out_terminal);
  streams.out << (losses.empty() ? std::string("no step is in both\n")
                  : differs.has_value()
                      ? fmt::format("losses differ from step {} on\n", *differs)
                      : fmt::format("losses agree at all {} steps\n", losses.size()));
  streams.out << fmt::format("median tokens/s: {:.0f} | {:.0f}\n", MedianSpeed(first),
                             MedianSpeed(second));
}

}  // namespace

std::optional<int64_t> FirstDifference(const RunHistory& first, const RunHistory& second,
                                       double tolerance) {
  for (const LossPair& pair : Losses(first, second)) {
    const double scale = std::max(std::abs(pair.first), std::abs(pair.second));
    if (!(std::abs(pair.first - pair.second) <= tolerance * scale)) {
      return pair.step;
    }
  }
  return std::nullopt;
}

absl::StatusOr<ExitCode> RunCompare(const CompareOptions& options, Streams& streams) {
  if (options.runs.size() < 2) {
    return InvalidArgument("name two runs or more to compare");
  }
  SHOAL_ASSIGN_OR_RETURN(const RunHistory first, ReadRunHistory(options.runs.front()));
  for (size_t i = 1; i < options.runs.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const RunHistory second, ReadRunHistory(options.runs[i]));
    ShowPair(first, second, options, streams);
  }
  return ExitCode::kDone;
}

void AddCompare(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = AddCommand(app, "compare", "Say where runs differ: job, losses, speed",
                                 "shoal compare checkpoints-a checkpoints-b --tolerance 1e-4");
  command->add_option("runs", options->runs, "Checkpoint directories, or records of runs")
      ->required();
  command
      ->add_option("--tolerance", options->tolerance,
                   "Of losses, relative; what is within it counts as equal")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", options->json, "A JSON line for each pair instead of text");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunCompare(*options, streams); };
  });
}

}  // namespace shoal::cli
