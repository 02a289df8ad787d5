// What it costs a job to have other servers while it trains: pauses of the waves, and steps beside
// those of a run that stays as it is. Steps of the move are those from the wish to the first by the
// last map. `step_seconds` begins where a pause ends, so that what workers do after a wave to go on
// by its map is in it. Bars: nine of ten waves pause 0.1 s at most and none above 0.3 s, and the
// median step of the move is at most 1.05 times that of the other run.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/on_demand/train_run.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/process/subprocess.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kPauseBar = 0.1;
constexpr double kLongestPauseBar = 0.3;
constexpr double kStepBar = 1.05;
constexpr int64_t kFirstSteps = 2;  // not counted, as memory is touched for the first time
constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr absl::Duration kLimit = absl::Minutes(9);
constexpr int kTailLines = 12;

struct Options {
  std::string job;
  int64_t servers = 4;
  int64_t wish_after = 8;  // this step
  std::string rate;        // empty: as the coordinator sees fit
  std::vector<std::string> transports;
  int rounds = 1;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Step {
  double seconds = 0;    // as told
  absl::Time committed;  // when that was read
};

struct Wave {
  int64_t step = 0;  // the first by its map
  int64_t bytes = 0;
  double pause = 0;
};

struct Run {
  std::map<int64_t, Step> steps;
  std::vector<Wave> waves;
  int64_t wish_after = 0;
};

void ReadSteps(const std::string& output, absl::Time now, Run& run) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object() && event.value("event", "") == "step") {
      run.steps.try_emplace(event.value("step", int64_t{0}), event.value("step_seconds", 0.0), now);
    }
  }
}

void ReadWaves(const std::string& output, Run& run) {
  const json reply = json::parse(output, nullptr, /*allow_exceptions=*/false);
  for (const json& wave : reply.is_object() ? reply.value("waves", json::array()) : json()) {
    run.waves.push_back({wave.value("step", int64_t{0}), wave.value("bytes", int64_t{0}),
                         wave.value("pause_seconds", 0.0)});
  }
}

class Runner {
 public:
  Runner(const Options& options, std::string transport, std::string folder)
      : options_(options), transport_(std::move(transport)), folder_(std::move(folder)) {}

  // To its end, with a wish or without.
  absl::StatusOr<Run> Train(bool scales) const {
    const std::string checkpoints = folder_ + "/checkpoints";
    const std::string log = folder_ + "/train.log";
    std::error_code ignored;
    fs::remove_all(checkpoints, ignored);
    fs::remove(log, ignored);
    std::vector<std::string> arguments = {kShoal, "train", options_.job, "--json", "--overwrite"};
    const std::vector<std::string> sets = Sets(checkpoints);
    arguments.insert(arguments.end(), sets.begin(), sets.end());
    ProcessGroup train;
    SHOAL_RETURN_IF_ERROR(
        train.Start({.name = "shoal train", .arguments = arguments, .log_file = log}));
    std::unique_ptr<Subprocess> scale;
    Run run;
    const absl::Time deadline = RealClock().Now() + kLimit;
    std::vector<ChildEnd> ends;
    while (ends.empty()) {
      if (RealClock().Now() > deadline) {
        return DeadlineExceeded("the job did not end:\n{}", TailOf(log, kTailLines));
      }
      ends = train.WaitForAll(kPoll);
      ReadSteps(ReadFile(log).value_or(""), RealClock().Now(), run);
      if (scales && scale == nullptr && run.steps.contains(options_.wish_after)) {
        SHOAL_ASSIGN_OR_RETURN(scale, StartScale(checkpoints));
        run.wish_after = run.steps.rbegin()->first;
      }
    }
    if (!ends.front().clean()) {
      return Unavailable("{}:\n{}", shoal::Describe(ends.front()), TailOf(log, kTailLines));
    }
    if (scales) {
      SHOAL_RETURN_IF_ERROR(TakeWaves(scale.get(), run));
    }
    return run;
  }

 private:
  static constexpr const char* kShoal = SHOAL_BIN_DIRECTORY "/shoal";

  std::vector<std::string> Sets(const std::string& checkpoints) const {
    std::vector<std::string> sets = {"--set", "checkpoint.directory=" + checkpoints, "--set",
                                     "checkpoint.export_huggingface=false"};
    if (!transport_.empty()) {
      sets.insert(sets.end(), {"--set", fmt::format("service.transports=[{}]", transport_)});
    }
    return sets;
  }

  absl::StatusOr<std::unique_ptr<Subprocess>> StartScale(const std::string& checkpoints) const {
    std::vector<std::string> arguments = {
        kShoal,   "scale",  "--run",     checkpoints,
        "--wait", "--json", "--servers", std::to_string(options_.servers)};
    if (!options_.rate.empty()) {
      arguments.insert(arguments.end(), {"--rate", options_.rate});
    }
    return Subprocess::Start({.name = "shoal scale", .arguments = arguments});
  }

  absl::Status TakeWaves(Subprocess* scale, Run& run) const {
    if (scale == nullptr) {
      return Unavailable("the job ended before step {}", options_.wish_after);
    }
    const auto end = scale->Wait(absl::Seconds(10));
    if (!end.has_value() || !end->clean()) {
      return Unavailable("shoal scale did not reach {} servers: {}", options_.servers,
                         scale->Errors());
    }
    ReadWaves(scale->Output(), run);
    return run.waves.empty() ? Unavailable("nothing moved") : absl::OkStatus();
  }

  const Options& options_;
  const std::string transport_;
  const std::string folder_;
};

// Of the steps from the first to the last.
std::vector<double> SecondsOf(const Run& run, int64_t first, int64_t last) {
  std::vector<double> seconds;
  for (auto step = run.steps.lower_bound(std::max(first, kFirstSteps + 1));
       step != run.steps.upper_bound(last); ++step) {
    seconds.push_back(step->second.seconds);
  }
  return seconds;
}

// From one commit to the next.
double Whole(const Run& run, int64_t step) {
  const auto now = run.steps.find(step);
  const auto before = run.steps.find(step - 1);
  return now == run.steps.end() || before == run.steps.end()
             ? 0
             : absl::ToDoubleSeconds(now->second.committed - before->second.committed);
}

void Print(const Run& run, const Run& control) {
  const double usual = Median(SecondsOf(control, 0, control.steps.rbegin()->first));
  fmt::print(
      "| wave | before step | MB | pause, s | that step, s | from commit to commit, s |\n"
      "|---|---|---|---|---|---|\n");
  std::vector<double> pauses;
  for (size_t i = 0; i < run.waves.size(); ++i) {
    const Wave& wave = run.waves[i];
    pauses.push_back(wave.pause);
    const std::vector<double> step = SecondsOf(run, wave.step, wave.step);
    fmt::print("| {} | {} | {:.1f} | {:.3f} | {:.3f} | {:.3f} |\n", i + 1, wave.step,
               static_cast<double>(wave.bytes) / 1e6, wave.pause, step.empty() ? 0 : step[0],
               Whole(run, wave.step));
  }
  const std::vector<double> moving = SecondsOf(run, run.wish_after + 1, run.waves.back().step);
  const int64_t after = run.waves.back().step + 1;
  const std::vector<double> later = SecondsOf(run, after, run.steps.rbegin()->first);
  const auto good = std::ranges::count_if(pauses, [](double pause) { return pause <= kPauseBar; });
  fmt::print(
      "waves: {} of {} pause {} s at most (bar: nine of ten), the longest {:.3f} s (bar {})\n",
      good, pauses.size(), kPauseBar, *std::ranges::max_element(pauses), kLongestPauseBar);
  fmt::print(
      "steps: median {:.3f} s without a wish; {:.3f} s in the {} of the move: **{:.3f}** "
      "(bar {}); {:.3f} s after it\n\n",
      usual, Median(moving), moving.size(), Median(moving) / usual, kStepBar,
      later.empty() ? 0 : Median(later));
  std::fflush(stdout);
}

absl::Status Report(const Options& options) {
  const std::string folder =
      (fs::temp_directory_path() / ("bench_moves-" + SecureToken())).string();
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  absl::Status status;
  for (const std::string& transport : options.transports) {
    const Runner runner(options, transport, folder);
    for (int round = 1; round <= options.rounds && status.ok(); ++round) {
      fmt::print("## {}, round {}\n\n", transport, round);
      const absl::StatusOr<Run> control = runner.Train(/*scales=*/false);
      const absl::StatusOr<Run> run = control.ok() ? runner.Train(/*scales=*/true) : control;
      status = run.status();
      if (run.ok()) {
        Print(*run, *control);
      }
    }
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return status;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::InitLogging({.role = "bench", .level = "off"});
  shoal::bench::Options options;
  CLI::App app("Pauses and steps while a job gets other servers, beside a run that keeps its own");
  app.add_option("job", options.job, "bench/moves/job.yaml, beside its model and data")->required();
  app.add_option("--servers", options.servers, "that it is to have")->capture_default_str();
  app.add_option("--after", options.wish_after, "step after which they are wished")
      ->capture_default_str();
  app.add_option("--rate", options.rate, "of the wish, like 200MB/s");
  app.add_option("--transports", options.transports, "one after the other (default: shm tcp)");
  app.add_option("--rounds", options.rounds, "of each")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (options.transports.empty()) {
    options.transports = {"shm", "tcp"};
  }
  const absl::Status status = shoal::bench::Report(options);
  if (!status.ok()) {
    fmt::print(stderr, "bench_moves: {}\n", shoal::Describe(status));
    return 1;
  }
  return 0;
}
