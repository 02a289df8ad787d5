// A job without files: plans from a seed, checkpoints in memory. What survives a run (checkpoints)
// is kept separately, so that a second run can resume.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "server/coordinator/job/job_environment.h"

namespace shoal::server::testing {

// Sample ids of a step are 1000 step + k, each of id % 7 + 1 targets and 10 tokens. Spread unevenly
// over the worker groups, some of which may get nothing.
class FakeSteps final : public StepPlanner {
 public:
  static constexpr int64_t kValidationStep = 999'999;
  FakeSteps(uint64_t seed, int64_t samples) : seed_(seed), samples_(samples) {}
  absl::StatusOr<plan::StepPlan> Plan(int64_t step, const PlanInputs& inputs) const override;
  // Of the samples of a step that no run comes to.
  absl::StatusOr<plan::StepPlan> PlanValidation(const PlanInputs& inputs) const override {
    return Plan(kValidationStep, inputs);
  }
  absl::StatusOr<plan::StepPlan> PlanForward(bool of_validation, int64_t first, int64_t count,
                                             const PlanInputs& inputs) const override;
  double LearningRate(int64_t step) const override { return 1.0 / static_cast<double>(step); }

  static int64_t Targets(int64_t sample) { return sample % 7 + 1; }
  // A sample's contribution to a worker's loss_sum.
  static double Loss(int64_t sample) { return static_cast<double>(sample % 11); }
  std::vector<int64_t> Samples(int64_t step) const;
  // What the model gives a reply of a pair, whatever it has learnt.
  static double LogProbability(int64_t sample, bool chosen) {
    return -1 - static_cast<double>(sample % (chosen ? 13 : 5));
  }
  // What a worker says of a pack.
  static proto::PackResult Run(const proto::MicrobatchWork& work);

 private:
  absl::StatusOr<plan::StepPlan> PlanOf(const std::vector<int64_t>& samples, uint64_t stream,
                                        const PlanInputs& inputs) const;

  const uint64_t seed_;
  const int64_t samples_;
};

// The disk's contents. Threads that share it hold `mutex`, as FakeCheckpointFiles does.
struct FakeDisk {
  absl::Mutex mutex;
  std::map<int64_t, CompleteCheckpoint> complete;
  using Shards = std::map<int, std::string>;  // by server: what it has written
  std::map<std::string, Shards> shards;       // by folder
  std::map<std::string, Shards> saved;        // by complete checkpoint's path
  absl::Status next_finish;                   // what Finish answers
  int failures_left = 1 << 30;                // how often it is not OK
  int discarded = 0;
  int term = 0;   // how often it was taken
  JobLife owner;  // who took it last
  std::string record;
  std::string exported;  // a checkpoint's path
  std::vector<double> references;
};

class FakeCheckpointFiles final : public CheckpointFiles {
 public:
  explicit FakeCheckpointFiles(FakeDisk& disk) : disk_(disk) {}
  absl::StatusOr<std::optional<CompleteCheckpoint>> Newest() override;
  absl::Status Take(const JobLife& of, bool resume) override;
  absl::Status CheckNewest(const JobLife& of) override;
  absl::StatusOr<int64_t> LastRecorded() override;
  absl::Status Record(const std::string& lines) override;
  absl::StatusOr<std::string> Create(int64_t step) override;
  absl::Status Discard(int64_t step) override;
  // Fails unless every server has written its shard.
  absl::StatusOr<std::string> Finish(const CompleteCheckpoint& checkpoint,
                                     const std::vector<proto::CheckpointShard>& shards) override;
  std::string PathOf(int64_t step) const override;
  std::string Find(int64_t step) override;
  absl::StatusOr<std::string> Export(const std::string& checkpoint) override;

 private:
  std::string PartOf(int64_t step) const;

  FakeDisk& disk_;
  int term_ = 0;
  JobLife of_;
};

struct FakeJobOptions {
  int64_t steps = 0;
  int servers = 0;
  int workers = 0;
  int stages = 1;
  int64_t samples = 0;  // per step
  int64_t pairs = 0;    // that samples are, of the whole data; 0: none
  bool validates = false;
  uint64_t seed = 1;
};
// Partition k is on server k.
LoadedJob MakeFakeJob(const FakeJobOptions& options, FakeDisk& disk);

}  // namespace shoal::server::testing
