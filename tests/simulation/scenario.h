// One seed's run: which features and which faults, all drawn from the seed. Each seed has a part of
// the features and a part of the faults, every fault at a rate of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/faults.h"
#include "tests/simulation/sim_options.h"

namespace shoal::simulation {

struct Scenario {
  SimOptions options;
  FaultOptions faults;
  // Faults are over by then, and the jobs must end within a minute and their work. Else anything
  // may go wrong at any time, and nothing is promised of an end.
  std::optional<Nanoseconds> quiet_from;
};

Scenario DrawScenario(uint64_t seed);

struct Outcome {
  std::vector<std::string> violations;
  std::vector<Fault> faults;  // that happened
  uint64_t trace = 0;         // equal for equal runs
  int64_t events = 0;
  std::vector<std::string> ends;  // of each job
};

Outcome RunScenario(const Scenario& scenario);
// With these faults in place of those drawn.
Outcome RunScenario(const Scenario& scenario, std::vector<Fault> faults);

}  // namespace shoal::simulation
