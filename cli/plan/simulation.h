// A job on a described cluster, opened to be simulated: shared by `shoal simulate` and `shoal
// plan`.
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

// The lengths of a prepared dataset's samples, as training would take them step by step.
absl::StatusOr<sim::Minibatches> TokenFileMinibatches(const plan::Job& job,
                                                      const std::string& token_file);
// The same of a job's own samples, which are prepared for it.
absl::StatusOr<sim::Minibatches> DataMinibatches(const plan::Job& job);

struct SimulationSource {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string cluster;  // file; empty: the job's workers
  std::string data;     // in place of the job's
  std::string lengths;  // a distribution, in place of data
  std::string shape;    // in place of the job's model
};

// All of them but the job file and its overrides, told to CLI11.
void AddSimulationOptions(CLI::App& command, SimulationSource& source);

struct Simulation {
  sim::SimulatorOptions options;
  sim::Minibatches minibatches;
  std::string title;               // what is simulated, in one line
  std::vector<std::string> notes;  // what was assumed

  int64_t devices() const { return options.cluster.workers(); }
};

// The devices are those of the cluster file, else as many equal ones as the job has workers (with
// emulate: those) whose transfers take no time. Policies that the job leaves open count as those of
// sharded training: fetch for each use, push after each microbatch. The job's element types where
// it leaves them open are bf16, whatever this machine's processor has.
absl::StatusOr<Simulation> OpenSimulation(const SimulationSource& source);

// On demand, the best way to assign: whether it beats the balanced collective baseline.
struct Verdict {
  sim::ChoiceSummary baseline;
  sim::ChoiceSummary best;
  double speed_up = 1;
  std::string answer;  // "On demand helps: ..."
};
Verdict MakeVerdict(const std::vector<sim::ChoiceSummary>& summaries);
// Runs what it takes to tell.
absl::StatusOr<Verdict> AskWhetherOnDemandHelps(const Simulation& simulation, int64_t steps);

// What is simulated and what was assumed; the answer; the same for programs.
void PrintTitle(const Simulation& simulation, int64_t steps, Streams& streams);
void PrintVerdict(const Verdict& verdict, Streams& streams);
nlohmann::json VerdictJson(const Verdict& verdict);

}  // namespace shoal::cli
