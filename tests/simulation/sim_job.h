// A job of the simulation: what it trains on, where its checkpoints are, and what its parameters
// must be after each step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/testing/fake_job.h"
#include "tests/simulation/sim_model.h"
#include "tests/simulation/sim_options.h"

namespace shoal::simulation {

// Identifies a stage's pushes for these samples: its part of the model.
std::vector<int64_t> OfStage(std::vector<int64_t> samples, int stage);

class SimJob {
 public:
  SimJob(const SimOptions& options, int number, server::testing::FakeDisk& disk);

  // The folder of its checkpoints, which names it.
  const std::string& directory() const { return directory_; }
  server::testing::FakeDisk& disk() { return disk_; }
  const server::testing::FakeSteps& steps() const { return steps_; }
  const SimModel& model() const { return model_; }
  const plan::Job& description() const { return description_; }
  int64_t last_step() const;

  proto::SubmitJobRequest Request() const;
  // `refuse`: what the disk answers instead of taking anything.
  server::LoadedJob Load(const proto::SubmitJobRequest& request,
                         std::function<absl::Status()> refuse);

  // What counts in a step: each sample once for each stage, ascending.
  std::vector<int64_t> SamplesOf(int64_t step) const;
  // Of the reference.
  const ModelState& StateAfter(int64_t step);
  std::vector<float> GradientOf(int64_t step);
  // What a complete checkpoint holds, and its step; of no path the model, as 0.
  std::pair<int64_t, ModelState> Saved(const std::string& path) const;
  double LossOf(int64_t step) const;

 private:
  plan::Job Describe() const;

  const SimOptions& options_;
  const std::string directory_;
  server::testing::FakeDisk& disk_;
  const server::testing::FakeSteps steps_;
  const SimModel model_;
  const plan::Job description_;
  const proto::Job message_;
  std::vector<ModelState> states_;  // after step 0, 1, ...
};

}  // namespace shoal::simulation
