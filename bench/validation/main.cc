// What a validation costs beside the forward passes of training: both by token, of one run. A
// validation's time is the coordinator's, from when it is handed out until its loss is known, so
// that every wait is in it; a step's forward time is what its workers computed, on average, from
// the timeline, without their waits and without the head, which that counts with its backward. Bar:
// no more.
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
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kBar = 1.0;
constexpr int64_t kFirstSteps = 1;  // not counted, as memory is touched for the first time
constexpr absl::Duration kLimit = absl::Minutes(30);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Figures {
  std::vector<double> validations;  // microseconds for a token
  std::vector<double> forwards;
};

// Seconds that workers computed forward, by step.
absl::StatusOr<std::map<int64_t, double>> ForwardSeconds(const std::string& trace, int workers) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(trace));
  const json timeline = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!timeline.contains("traceEvents")) {
    return DataLoss("{} is no timeline", trace);
  }
  std::map<int64_t, double> seconds;
  for (const json& event : timeline["traceEvents"]) {
    if (event.value("ph", "") == "X" && event.value("name", "") == "forward") {
      seconds[event["args"].value("step", int64_t{0})] += event.value("dur", 0.0) * 1e-6 / workers;
    }
  }
  return seconds;
}

absl::StatusOr<Figures> Measure(const std::string& job_file, int workers) {
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
  const auto forward = ForwardSeconds(trace, workers);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  SHOAL_RETURN_IF_ERROR(output.status());
  SHOAL_RETURN_IF_ERROR(forward.status());
  Figures figures;
  std::istringstream lines(*output);
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string kind = event.is_object() ? event.value("event", "") : "";
    const int64_t step = kind.empty() ? 0 : event.value("step", int64_t{0});
    const double tokens = kind.empty() ? 0 : event.value("tokens", 0.0);
    if (step <= kFirstSteps || tokens <= 0) {
      continue;
    }
    if (kind == "validation") {
      figures.validations.push_back(1e6 * event.value("seconds", 0.0) / tokens);
    } else if (kind == "step" && forward->contains(step)) {
      figures.forwards.push_back(1e6 * forward->at(step) / tokens);
    }
  }
  if (figures.validations.empty() || figures.forwards.empty()) {
    return InvalidArgument("{}: no validation after step {} (data.validation)", job_file,
                           kFirstSteps);
  }
  return figures;
}

absl::Status Report(const std::string& job_file, int rounds) {
  fmt::print("| workers | round | validation | forward | ratio |\n|---|---|---|---|---|\n");
  for (const int workers : {1, 2}) {
    std::vector<double> ratios;
    for (int round = 1; round <= rounds; ++round) {
      SHOAL_ASSIGN_OR_RETURN(const Figures figures, Measure(job_file, workers));
      const double validation = Median(figures.validations);
      const double forward = Median(figures.forwards);
      ratios.push_back(validation / forward);
      fmt::print("| {} | {} | {:.2f} us a token | {:.2f} us a token | {:.3f} |\n", workers, round,
                 validation, forward, ratios.back());
      std::fflush(stdout);
    }
    fmt::print("| {} | median | | | **{:.3f}** (bar {:.2f}) |\n", workers, Median(ratios), kBar);
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
