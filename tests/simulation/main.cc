// shoal-sim: runs seeds of the simulation (docs/simulation.md).
#include "CLI/CLI.hpp"
#include "core/base/threads/lock_order.h"
#include "fmt/format.h"
#include "tests/simulation/scenario.h"

namespace shoal::simulation {
namespace {

int Main(int argc, char** argv) {
  StopCheckingLockOrder();
  uint64_t first = 1;
  uint64_t seeds = 0;
  std::optional<uint64_t> seed;
  bool trace = false;
  CLI::App app("Simulates the coordinator's world from seeds");
  app.add_option("--seed", seed, "");
  app.add_option("--first", first, "");
  app.add_option("--seeds", seeds, "");
  app.add_flag("--trace", trace, "");
  CLI11_PARSE(app, argc, argv);
  if (seed.has_value()) {
    first = *seed;
    seeds = 1;
  }
  std::map<std::string, int> ends;
  int64_t events = 0;
  int bad = 0;
  for (uint64_t k = first; k < first + seeds; ++k) {
    Scenario scenario = DrawScenario(k);
    scenario.options.print = trace;
    const Outcome outcome = RunScenario(scenario);
    events += outcome.events;
    for (const std::string& end : outcome.ends) {
      std::string kind = end.substr(0, 110);
      for (char& c : kind) {
        c = std::isdigit(c) ? '#' : c;
      }
      ++ends[kind];
    }
    if (!outcome.violations.empty()) {
      ++bad;
      if (bad < 10) {
        fmt::print("seed {}: {}\n", k, fmt::join(outcome.violations, "\n  "));
      }
    }
    if (seed.has_value()) {
      for (const Fault& fault : outcome.faults) {
        fmt::print("{}\n", ToCode(fault));
      }
      fmt::print("trace {:016x}, {} events, again {:016x}\n", outcome.trace, outcome.events,
                 RunScenario(scenario, outcome.faults).trace);
    }
  }
  for (const auto& [end, count] : ends) {
    fmt::print("{:7} {}\n", count, end);
  }
  fmt::print("{} events, {} bad\n", events, bad);
  return 0;
}

}  // namespace
}  // namespace shoal::simulation

int main(int argc, char** argv) { return shoal::simulation::Main(argc, argv); }
