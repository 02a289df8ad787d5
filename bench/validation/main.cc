// What a validation adds to a run beside its forward passes, both in time for a token. Job: a
// validation after every second step. What it adds is its own time, from when it is handed out
// until its loss is known, less what the step after it waits less for weights than the next, which
// has none before it: those that are got for a validation stay for that step. Its forward passes,
// the head's included, are what its workers computed meanwhile, on average, by the timeline. Beside
// them, to compare with: forward passes of the steps, which keep activations, without the head.
// Bar: it adds no more than its forward passes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "bench/on_demand/train_run.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/time_kind.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kBar = 1.0;
constexpr int64_t kFirstSteps = 2;  // not counted, as memory is touched for the first time
constexpr absl::Duration kLimit = absl::Minutes(30);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Part {
  double seconds = 0;
  double tokens = 0;
  // Of a worker, on average.
  double forward_seconds = 0;
  double get_wait_seconds = 0;
};

// Of a run, by step; a validation by the step before it.
struct Run {
  std::map<int64_t, Part> steps;
  std::map<int64_t, Part> validations;
};

absl::Status ReadTimeline(const std::string& path, int workers, Run& run) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const json timeline = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!timeline.contains("traceEvents")) {
    return DataLoss("{} is no timeline", path);
  }
  std::map<double, int64_t> ends;  // of validations, by time
  for (const json& event : timeline["traceEvents"]) {
    if (event.value("name", "") == "validation") {
      ends[event.value("ts", 0.0) + event.value("dur", 0.0)] = event["args"].value("step", 0);
    }
  }
  for (const json& event : timeline["traceEvents"]) {
    const std::string name = event.value("name", "");
    if (name != Name(TimeKind::kForward) && name != Name(TimeKind::kGetWait)) {
      continue;
    }
    const int64_t step = event["args"].value("step", 0);
    const auto next = ends.lower_bound(event.value("ts", 0.0));
    const bool validates = next != ends.end() && next->second == step - 1;
    Part& part = validates ? run.validations[step - 1] : run.steps[step];
    (name == Name(TimeKind::kForward) ? part.forward_seconds : part.get_wait_seconds) +=
        event.value("dur", 0.0) * 1e-6 / workers;
  }
  return absl::OkStatus();
}

void Parse(const std::string& output, Run& run) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string kind = event.is_object() ? event.value("event", "") : "";
    if (kind == "step" || kind == "validation") {
      const bool of_step = kind == "step";
      Part& part = (of_step ? run.steps : run.validations)[event.value("step", int64_t{0})];
      part.seconds = event.value(of_step ? "step_seconds" : "seconds", 0.0);
      part.tokens = event.value("tokens", 0.0);
    }
  }
}

absl::StatusOr<Run> Train(const std::string& job_file, int workers) {
  const fs::path folder = fs::temp_directory_path() / ("bench_validation-" + SecureToken());
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  const std::string trace = folder / "trace.json";
  const TrainRunner runner(SHOAL_BIN_DIRECTORY "/shoal", folder);
  const auto output =
      runner.Run({"train", job_file, "--json", "--trace", trace, "--set",
                  fmt::format("cluster.local.workers={}", workers), "--set",
                  "checkpoint.directory=" + (folder / "checkpoints").string(), "--set",
                  "checkpoint.export_huggingface=false", "--set", "checkpoint.every_seconds=0"},
                 kLimit);
  Run run;
  const absl::Status timeline = ReadTimeline(trace, workers, run);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  SHOAL_RETURN_IF_ERROR(output.status());
  SHOAL_RETURN_IF_ERROR(timeline);
  Parse(*output, run);
  return run;
}

// Medians, microseconds for a token.
struct Figures {
  double validation = 0;
  double added = 0;
  double forward = 0;
  double forward_of_steps = 0;
};

absl::StatusOr<Figures> FiguresOf(const Run& run) {
  std::vector<double> validations;
  std::vector<double> added;
  std::vector<double> forward;
  std::vector<double> forward_of_steps;
  for (const auto& [step, validation] : run.validations) {
    const auto after = run.steps.find(step + 1);
    const auto next = run.steps.find(step + 2);
    if (step < kFirstSteps || next == run.steps.end() || run.validations.contains(step + 1)) {
      continue;
    }
    const auto a_token = [](double seconds, const Part& part) {
      return 1e6 * seconds / part.tokens;
    };
    const double saved = next->second.get_wait_seconds - after->second.get_wait_seconds;
    validations.push_back(a_token(validation.seconds, validation));
    added.push_back(a_token(validation.seconds - saved, validation));
    forward.push_back(a_token(validation.forward_seconds, validation));
    forward_of_steps.push_back(a_token(next->second.forward_seconds, next->second));
  }
  if (added.empty()) {
    return InvalidArgument("the job has no validation after every second step (data.validation)");
  }
  return Figures{.validation = Median(validations),
                 .added = Median(added),
                 .forward = Median(forward),
                 .forward_of_steps = Median(forward_of_steps)};
}

absl::Status Report(const std::string& job_file, int rounds) {
  fmt::print(
      "| workers | round | its time, us a token | it adds | its forward passes | those of steps "
      "| ratio |\n|---|---|---|---|---|---|---|\n");
  for (const int workers : {1, 2}) {
    std::vector<double> ratios;
    for (int round = 1; round <= rounds; ++round) {
      SHOAL_ASSIGN_OR_RETURN(const Run run, Train(job_file, workers));
      SHOAL_ASSIGN_OR_RETURN(const Figures figures, FiguresOf(run));
      ratios.push_back(figures.added / figures.forward);
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.3f} |\n", workers, round,
                 figures.validation, figures.added, figures.forward, figures.forward_of_steps,
                 ratios.back());
      std::fflush(stdout);
    }
    fmt::print("| {} | median | | | | | **{:.3f}** (bar {:.2f}) |\n", workers, Median(ratios),
               kBar);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace shoal::bench

// bench_validation JOB.yaml [ROUNDS]
int main(int argc, char** argv) {
  shoal::InitLogging({.role = "bench", .level = "off"});
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  if (argc < 2 || rounds < 1) {
    fmt::print(stderr, "bench_validation JOB.yaml [ROUNDS]\n");
    return 2;
  }
  const absl::Status status = shoal::bench::Report(argv[1], rounds);
  if (!status.ok()) {
    fmt::print(stderr, "bench_validation: {}\n", shoal::Describe(status));
    return 1;
  }
  return 0;
}
