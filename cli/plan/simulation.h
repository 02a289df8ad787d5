// Opens a job on a described cluster to simulate it, for `shoal simulate` and `shoal plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run/command.h"
#include "core/sim/comparison.h"
#include "core/sim/simulator.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
}

namespace shoal::cli {

// Returns a prepared dataset's sample lengths in the order that training takes them.
absl::StatusOr<sim::Minibatches> TokenFileMinibatches(const plan::Job& job,
                                                      const std::string& token_file);
// Same as above; prepares the job's data first, and settles preference.reference by it.
absl::StatusOr<sim::Minibatches> DataMinibatches(plan::Job& job);

struct SimulationSource {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string cluster;  // file; empty: the job's workers
  std::string data;     // instead of the job's
  std::string lengths;  // a distribution instead of data
  std::string shape;    // instead of the job's model
};

// Adds all options but the job file and its overrides.
void AddSimulationOptions(CLI::App& command, SimulationSource& source);

struct Simulation {
  sim::SimulatorOptions options;
  sim::Minibatches minibatches;
  std::string title;               // what is simulated, in one line
  std::vector<std::string> notes;  // what was assumed

  int64_t devices() const { return options.cluster.workers(); }
};

// Takes the devices of the cluster file, else one equal device for each of the job's workers (its
// emulated ones with emulate), where transfers take no time. Settles what the job leaves open as
// sharded training does: fetches for each use, pushes after each microbatch. Element types left
// open are bf16, whatever this machine's CPU has.
absl::StatusOr<Simulation> OpenSimulation(const SimulationSource& source);

// Whether on demand, with its best assignment, beats the balanced collective baseline.
struct Verdict {
  sim::ChoiceSummary baseline;
  sim::ChoiceSummary best;
  double speed_up = 1;
  std::string answer;  // "On demand helps: ..."
};
Verdict MakeVerdict(const std::vector<sim::ChoiceSummary>& summaries);
// Simulates the choices that decide it.
absl::StatusOr<Verdict> AskWhetherOnDemandHelps(const Simulation& simulation, int64_t steps);

// Prints what is simulated and assumed.
void PrintTitle(const Simulation& simulation, int64_t steps, Streams& streams);
void PrintVerdict(const Verdict& verdict, Streams& streams);
nlohmann::json VerdictJson(const Verdict& verdict);

}  // namespace shoal::cli
