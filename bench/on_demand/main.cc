// Compares on-demand communication with collectives over the paper's grid:
//
//   bench_on_demand --output bench/results
//
// Simulates the grid, runs it on emulated devices, finds the break-even, trains for real if
// SHOAL_TEST_DATA names the folder of test data, and writes DATE-on-demand.md with charts. Takes
// about twenty minutes, mostly waiting, on a quiet machine.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "CLI/CLI.hpp"
#include "bench/on_demand/experiments.h"
#include "bench/on_demand/paper.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string only;
  std::string filter;
  bool quick = false;
  std::string output;
  std::string program = SHOAL_BIN_DIRECTORY "/shoal";
  std::string cluster = SHOAL_SOURCE_DIRECTORY "/examples/clusters/a100-2x8.yaml";
  EmulatedOptions emulated;

  bool Runs(std::string_view part) const { return only.empty() || only == part; }
  bool Takes(const Config& config) const { return config.Name().find(filter) != std::string::npos; }
  int64_t simulated_steps() const { return quick ? 20 : 200; }
  int64_t break_even_steps() const { return quick ? 5 : 30; }
};

void Say(const std::string& text) { fmt::print(stderr, "{}\n", text); }

// Removes the folder and its content at destruction.
class WorkFolder {
 public:
  WorkFolder()
      : path_(fs::temp_directory_path().string() + fmt::format("/shoal-on-demand-{}", getpid())) {}
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

std::vector<Config> ConfigsOf(const Options& options) {
  std::vector<Config> configs = Grid();
  if (options.quick) {
    configs.resize(3);
  }
  std::erase_if(configs, [&](const Config& config) { return !options.Takes(config); });
  return configs;
}

absl::Status SimulateAll(const Options& options, const plan::ClusterSpec& cluster,
                         Results& results) {
  std::vector<Config> configs = ConfigsOf(options);
  for (const AmdRatio& amd : AmdRatios()) {
    const bool known = std::ranges::find(configs, amd.config) != configs.end();
    if (!known && !options.quick && options.Takes(amd.config)) {
      configs.push_back(amd.config);
    }
  }
  for (const Config& config : configs) {
    SHOAL_ASSIGN_OR_RETURN(results.simulated.emplace_back(),
                           Simulate(config, cluster, options.simulated_steps()));
  }
  Say(fmt::format("simulated {} configs", results.simulated.size()));
  if (options.filter.empty()) {
    SHOAL_ASSIGN_OR_RETURN(results.break_even, FindBreakEven(cluster, options.break_even_steps()));
    Say("simulated the break-even");
  }
  return absl::OkStatus();
}

absl::Status EmulateOne(const Config& config, const std::vector<Method>& methods,
                        const EmulatedOptions& options, const TrainRunner& runner,
                        Results& results) {
  const absl::Time begin = absl::Now();
  SHOAL_ASSIGN_OR_RETURN(results.emulated.emplace_back(),
                         Emulate(config, methods, options, runner));
  Say(fmt::format("emulated {} ({:.0f} s)", config.Name(),
                  absl::ToDoubleSeconds(absl::Now() - begin)));
  for (const EmulatedMethod& run : results.emulated.back().methods) {
    Say(fmt::format("  {:28} speed-up {}, {} from simulated, idle {}, predicted {}",
                    run.method.Name(), Ratio(results.emulated.back().SpeedUp(run.method.choice)),
                    Difference(run.difference()), Percent(run.idle_share),
                    Percent(run.predicted_idle_share)));
  }
  return absl::OkStatus();
}

// Runs the golden config and the slow device first: they have their own bars.
absl::Status EmulateAll(const Options& options, const TrainRunner& runner, Results& results) {
  const std::vector<Method> all(kMethods.begin(), kMethods.end());
  EmulatedOptions longer = options.emulated;
  longer.steps *= options.quick ? 1 : 3;
  if (options.Takes(Config())) {
    SHOAL_RETURN_IF_ERROR(EmulateOne(Config(), all, longer, runner, results));
  }
  if (options.Takes(SlowDeviceConfig())) {
    SHOAL_RETURN_IF_ERROR(EmulateOne(SlowDeviceConfig(), {all.begin() + kBaselineMethod, all.end()},
                                     options.emulated, runner, results));
  }
  std::vector<Method> in_grid = all;
  std::erase_if(in_grid, [](const Method& method) { return !method.in_grid; });
  for (const Config& config : ConfigsOf(options)) {
    if (config != Config()) {
      SHOAL_RETURN_IF_ERROR(EmulateOne(config, in_grid, options.emulated, runner, results));
    }
  }
  return absl::OkStatus();
}

absl::Status RunRealPart(const Options& options, const TrainRunner& runner, Results& results) {
  const char* const data = std::getenv("SHOAL_TEST_DATA");
  if (data == nullptr) {
    Say("real compute is left out: SHOAL_TEST_DATA does not name the folder of test data");
    return absl::OkStatus();
  }
  RealOptions real;
  if (options.quick) {
    real.minibatch_samples = {16};
    real.rounds = 1;
  }
  SHOAL_ASSIGN_OR_RETURN(results.real, RunReal(data, real, runner));
  Say("trained for real");
  return absl::OkStatus();
}

std::string Introduction(const Options& options, const std::string& command) {
  utsname machine{};
  uname(&machine);
  return fmt::format(
      "Made by `{}` on {} cores ({}).\n\n"
      "**Emulated**: real coordinator, servers, workers and messages on this machine; devices "
      "compute nothing and wait as long as the shape's FLOPs take at 1.4e14 FLOP/s, in scaled "
      "time, with a small stand-in for the weights that travel. **Simulated**: `sim/` on `{}`, "
      "with as "
      "many devices as the config says, {} steps each. **Real**: computed. The baseline is what "
      "collective sharded training does at its best: all wait at every layer (`layer`), with "
      "samples balanced by lb-micro. The golden config: {}.",
      command, std::thread::hardware_concurrency(), machine.machine,
      fs::path(options.cluster).filename().string(), options.simulated_steps(), Config().Name());
}

absl::Status Run(const Options& options, const std::string& command) {
  SHOAL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(options.cluster));
  SHOAL_ASSIGN_OR_RETURN(const plan::ClusterSpec cluster,
                         plan::ParseCluster(yaml, options.cluster));
  const WorkFolder folder;
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder.path()));
  const TrainRunner runner(options.program, folder.path());
  Results results;
  if (options.Runs("simulated")) {
    SHOAL_RETURN_IF_ERROR(SimulateAll(options, cluster, results));
  }
  if (options.Runs("emulated")) {
    SHOAL_RETURN_IF_ERROR(EmulateAll(options, runner, results));
  }
  if (options.Runs("real")) {
    SHOAL_RETURN_IF_ERROR(RunRealPart(options, runner, results));
  }
  const std::string date =
      absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()) + "-on-demand";
  Report report(date);
  AddGolden(results, report);
  AddSweeps(results, report);
  AddShapes(results, report);
  AddPaper(results, report);
  AddBreakEven(results, report);
  AddReal(results, report);
  AddAgreement(results, report);
  const std::string title = "On-demand communication beside collectives";
  const std::string introduction = Introduction(options, command);
  if (options.output.empty()) {
    fmt::print("{}", report.Markdown(title, introduction));
    return absl::OkStatus();
  }
  Say(fmt::format("{}/{}.md: {} bars missed", options.output, date, report.missed()));
  return report.Write(options.output, date, title, introduction);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("On-demand communication: simulated, emulated and real, as a report");
  app.add_option("--only", options.only, "One part alone")
      ->check(CLI::IsMember({"simulated", "emulated", "real"}));
  app.add_option("--filter", options.filter,
                 "Only configs with this in their name, such as \"on each of 4 devices\"");
  app.add_flag("--quick", options.quick, "A few configs and few steps");
  app.add_option("--output", options.output,
                 "Folder for the report and its charts; without it the report goes to stdout");
  app.add_option("--program", options.program, "The shoal program");
  app.add_option("--cluster", options.cluster, "Cluster file whose links are simulated");
  app.add_option("--step-seconds", options.emulated.step_seconds,
                 "Real seconds of an emulated step on up to 8 devices");
  app.add_option("--steps", options.emulated.steps, "Emulated steps that count")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  std::string command = fs::path(argv[0]).filename().string();
  for (int i = 1; i < argc; ++i) {
    command += fmt::format(" {}", argv[i]);
  }
  const absl::Status status = Run(options, command);
  if (!status.ok()) {
    Say(std::string(Message(status)));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) { return shoal::bench::Main(argc, argv); }
