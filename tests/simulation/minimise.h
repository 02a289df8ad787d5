// Makes the run of a failing seed small: fewer faults (delta debugging over the list of those that
// happened), then fewer servers, workers, steps, samples and jobs.
#pragma once

#include <string>
#include <vector>

#include "tests/simulation/scenario.h"

namespace shoal::simulation {

struct Minimised {
  Scenario scenario;
  std::vector<Fault> faults;
  std::vector<std::string> violations;
  int runs = 0;
};

// `scenario` must violate something. The result violates the same invariant.
Minimised Minimise(const Scenario& scenario);

// The run as a test, in C++.
std::string ToTest(const Minimised& minimised);

}  // namespace shoal::simulation
