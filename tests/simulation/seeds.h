// Runs ranges of seeds on several threads, and adds up what they did.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/scenario.h"

namespace shoal::simulation {

struct SeedRange {
  uint64_t first = 1;
  uint64_t count = 0;
  int jobs = 1;                // threads
  std::string plant;           // core/base/testing/planted.h; empty: none
  bool until_failure = false;  // no more after one that fails
};

struct Summary {
  uint64_t seeds = 0;  // that were run
  int64_t events = 0;
  std::map<std::string, int64_t> ends;                    // of jobs, with # for digits
  std::map<std::string, int64_t> faults;                  // by kind
  std::map<uint64_t, std::vector<std::string>> failures;  // violations by seed
  double seconds = 0;
};

Summary RunSeeds(const SeedRange& range);

// As a page, for a dated report.
std::string ToReport(const SeedRange& range, const Summary& summary, const std::string& date);

// A table of ranges that were run, a line each: date, first, last, failures, seconds.
// Returns the first seed after the last range; 1 where there is no such file.
uint64_t NextInTable(const std::string& path);
void AddToTable(const std::string& path, const SeedRange& range, const Summary& summary,
                const std::string& date);

// Where a check of the code fails, says which seed it was.
void NameSeedOnAbort();

}  // namespace shoal::simulation
