// shoal-sim: runs seeds of the simulation (docs/simulation.md).
#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/testing/planted.h"
#include "core/base/threads/lock_order.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/simulation/minimise.h"
#include "tests/simulation/plants.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/seeds.h"

namespace shoal::simulation {
namespace {

struct Flags {
  std::optional<uint64_t> seed;
  SeedRange range;
  bool trace = false;
  bool minimise = false;
  std::string report;
  std::string table;
};

std::string Today() { return absl::FormatTime("%Y-%m-%d", WallTime(), absl::UTCTimeZone()); }

// Returns whether nothing was violated.
bool RunOne(const Flags& flags) {
  planted = flags.range.plant;
  Scenario scenario = DrawScenario(*flags.seed);
  scenario.options.print = flags.trace;
  const Outcome outcome = RunScenario(scenario);
  fmt::print("seed {}: {}\n", *flags.seed, ToCode(scenario.options));
  for (const Fault& fault : outcome.faults) {
    fmt::print("  {}\n", ToCode(fault));
  }
  for (const std::string& violation : outcome.violations) {
    fmt::print("{}\n", violation);
  }
  fmt::print("trace {:016x}, {} events, jobs: {}\n", outcome.trace, outcome.events,
             fmt::join(outcome.ends, "; "));
  if (flags.minimise && !outcome.violations.empty()) {
    scenario.options.print = false;
    const Minimised minimised = Minimise(scenario);
    fmt::print("\n{} faults of {} are enough ({} runs):\n\n{}", minimised.faults.size(),
               outcome.faults.size(), minimised.runs, ToTest(minimised));
  }
  return outcome.violations.empty();
}

bool RunMany(Flags& flags) {
  if (!flags.table.empty()) {
    flags.range.first = NextInTable(flags.table);
  }
  const Summary summary = RunSeeds(flags.range);
  for (const auto& [seed, violations] : summary.failures) {
    fmt::print("seed {}: {}\n", seed, fmt::join(violations, "\n  "));
  }
  fmt::print("seeds {} to {}: {} runs, {} events, {:.1f} s, {} with a violation\n",
             flags.range.first, flags.range.first + flags.range.count - 1, summary.seeds,
             summary.events, summary.seconds, summary.failures.size());
  if (!flags.report.empty()) {
    std::ofstream(flags.report) << ToReport(flags.range, summary, Today());
  }
  if (!flags.table.empty()) {
    AddToTable(flags.table, flags.range, summary, Today());
  }
  return summary.failures.empty();
}

int Main(int argc, char** argv) {
  StopCheckingLockOrder();
  NameSeedOnAbort();
  Flags flags;
  flags.range.count = 2000;
  CLI::App app(
      "Simulates the coordinator's world from seeds. Examples:\n"
      "  shoal-sim --seeds 20000 --jobs 2\n"
      "  shoal-sim --seed 4711 --trace --minimise");
  auto* seed = app.add_option("--seed", flags.seed, "Run this seed, and say what happened");
  app.add_flag("--trace", flags.trace, "Print everything that happens")->needs(seed);
  app.add_flag("--minimise", flags.minimise, "Look for the fewest faults that fail, as a test")
      ->needs(seed);
  app.add_option("--seeds", flags.range.count, "Run so many seeds")
      ->capture_default_str()
      ->excludes(seed);
  auto* first =
      app.add_option("--first", flags.range.first, "The first of them")->capture_default_str();
  app.add_option("--jobs", flags.range.jobs, "Threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  std::vector<std::string> names;
  for (const Plant& plant : kPlants) {
    names.emplace_back(plant.name);
  }
  auto* plant =
      app.add_option("--plant", flags.range.plant, "Plant this bug")->check(CLI::IsMember(names));
  auto* until_failure =
      app.add_flag("--until-failure", flags.range.until_failure, "End with the first that fails");
  app.add_option("--report", flags.report, "Write a report to this file");
  app.add_option("--table", flags.table, "Go on where this table of seeds ended, and add to it")
      ->excludes(first, plant, until_failure, seed);
  CLI11_PARSE(app, argc, argv);
  return (flags.seed.has_value() ? RunOne(flags) : RunMany(flags)) ? 0 : 1;
}

}  // namespace
}  // namespace shoal::simulation

int main(int argc, char** argv) { return shoal::simulation::Main(argc, argv); }
