#include "tests/simulation/seeds.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <mutex>
#include <regex>
#include <sstream>
#include <thread>

#include "core/base/clock.h"
#include "core/base/testing/planted.h"
#include "fmt/format.h"

namespace shoal::simulation {
namespace {

thread_local uint64_t current_seed = 0;

void OnAbort(int /*signal*/) {
  char line[64];
  const auto end = fmt::format_to_n(line, sizeof(line), "aborted in seed {}\n", current_seed);
  static_cast<void>(!write(STDERR_FILENO, line, end.size));
}

void Add(Summary& summary, uint64_t seed, const Outcome& outcome) {
  ++summary.seeds;
  summary.events += outcome.events;
  static const std::regex numbers("job-[0-9a-f]+|[0-9.]*[0-9]");
  for (const std::string& end : outcome.ends) {
    ++summary.ends[std::regex_replace(end, numbers, "#").substr(0, 100)];
  }
  for (const Fault& fault : outcome.faults) {
    ++summary.faults[NameOf(fault.kind)];
  }
  if (!outcome.violations.empty()) {
    summary.failures[seed] = outcome.violations;
  }
}

}  // namespace

void NameSeedOnAbort() { static_cast<void>(std::signal(SIGABRT, OnAbort)); }

Summary RunSeeds(const SeedRange& range) {
  Summary summary;
  std::mutex mutex;
  std::atomic<uint64_t> next = range.first;
  std::atomic<bool> stop = false;
  const auto run = [&] {
    planted = range.plant;
    for (uint64_t seed = next++; seed < range.first + range.count && !stop; seed = next++) {
      current_seed = seed;
      const Outcome outcome = RunScenario(DrawScenario(seed));
      const std::lock_guard lock(mutex);
      Add(summary, seed, outcome);
      stop = stop || (range.until_failure && !outcome.violations.empty());
    }
    planted = "";
  };
  const absl::Time start = RealClock().Now();
  std::vector<std::thread> threads;
  for (int job = 1; job < range.jobs; ++job) {
    threads.emplace_back(run);
  }
  run();
  for (std::thread& thread : threads) {
    thread.join();
  }
  summary.seconds = absl::ToDoubleSeconds(RealClock().Now() - start);
  return summary;
}

std::string ToReport(const SeedRange& range, const Summary& summary, const std::string& date) {
  std::string page = fmt::format(
      "# Simulation, {}\n\n"
      "Seeds {} to {}, {} threads: {} runs, {} events, {:.0f} s; {} runs with a violation.\n",
      date, range.first, range.first + range.count - 1, range.jobs, summary.seeds, summary.events,
      summary.seconds, summary.failures.size());
  for (const auto& [seed, violations] : summary.failures) {
    page += fmt::format("- seed {}: {}\n", seed, violations.front());
  }
  page += "\n| faults | |\n|---|---|\n";
  for (const auto& [fault, count] : summary.faults) {
    page += fmt::format("| {} | {} |\n", fault, count);
  }
  page += "\n| jobs that ended so | |\n|---|---|\n";
  for (const auto& [end, count] : summary.ends) {
    page += fmt::format("| {} | {} |\n", end, count);
  }
  return page;
}

uint64_t NextInTable(const std::string& path) {
  std::ifstream file(path);
  uint64_t next = 1;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string date;
    uint64_t first = 0;
    uint64_t last = 0;
    if (fields >> date >> first >> last) {
      next = last + 1;
    }
  }
  return next;
}

void AddToTable(const std::string& path, const SeedRange& range, const Summary& summary,
                const std::string& date) {
  std::ofstream(path, std::ios::app)
      << fmt::format("{}\t{}\t{}\t{}\t{:.0f}\n", date, range.first, range.first + range.count - 1,
                     summary.failures.size(), summary.seconds);
}

}  // namespace shoal::simulation
