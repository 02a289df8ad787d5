#include "server/coordinator/testing/fake_job.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "core/base/json/json.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::server::testing {

// Those of the validation are numbered on their own.
std::vector<int64_t> FakeSteps::Samples(int64_t step) const {
  std::vector<int64_t> ids;
  for (int64_t k = 0; k < samples_; ++k) {
    ids.push_back((step == kValidationStep ? 0 : 1000 * step) + k);
  }
  return ids;
}

absl::StatusOr<plan::StepPlan> FakeSteps::Plan(int64_t step, const PlanInputs& inputs) const {
  return PlanOf(Samples(step), static_cast<uint64_t>(step), inputs);
}

absl::StatusOr<plan::StepPlan> FakeSteps::PlanForward(bool of_validation, int64_t first,
                                                      int64_t count,
                                                      const PlanInputs& inputs) const {
  std::vector<int64_t> samples(static_cast<size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  return PlanOf(samples, of_validation ? 1 : 0, inputs);
}

absl::StatusOr<plan::StepPlan> FakeSteps::PlanOf(const std::vector<int64_t>& samples,
                                                 uint64_t stream, const PlanInputs& inputs) const {
  const int workers = inputs.groups;
  Random random(seed_, stream);
  plan::StepPlan plan;
  plan.workers.resize(static_cast<size_t>(workers));
  for (const int64_t sample : samples) {
    // The first worker gets more than all others together; the last ones often get nothing.
    const uint64_t draw = random.Below(static_cast<uint64_t>(2 * workers));
    auto& microbatches = plan.workers[draw < static_cast<uint64_t>(workers) ? draw : 0];
    if (microbatches.empty() || random.Below(2) == 0) {
      microbatches.emplace_back();
    }
    plan::Microbatch& microbatch = microbatches.back();
    microbatch.samples.push_back(sample);
    microbatch.tokens += 10;
    microbatch.squared_tokens += 100;
    microbatch.cost += 10;
    microbatch.targets += Targets(sample);
    plan.tokens += 10;
    plan.targets += Targets(sample);
    plan.weight += static_cast<double>(Targets(sample));
  }
  int64_t number = 0;
  for (std::vector<plan::Microbatch>& microbatches : plan.workers) {
    for (plan::Microbatch& microbatch : microbatches) {
      microbatch.number = number++;
    }
  }
  return plan;
}

proto::PackResult FakeSteps::Run(const proto::MicrobatchWork& work) {
  proto::PackResult result;
  result.set_number(work.number());
  for (const int64_t sample : work.samples()) {
    result.set_loss_sum(result.loss_sum() + Loss(sample));
    result.set_targets(result.targets() + Targets(sample));
    result.set_tokens(result.tokens() + 10);
    result.add_log_probabilities(LogProbability(sample, /*chosen=*/true));
    result.add_log_probabilities(LogProbability(sample, /*chosen=*/false));
  }
  return result;
}

absl::StatusOr<std::optional<CompleteCheckpoint>> FakeCheckpointFiles::Newest() {
  absl::MutexLock lock(&disk_.mutex);
  return disk_.complete.empty() ? std::nullopt
                                : std::make_optional(disk_.complete.rbegin()->second);
}

absl::Status FakeCheckpointFiles::CheckNewest(const JobLife& of) {
  absl::MutexLock lock(&disk_.mutex);
  return disk_.owner.job == of.job && disk_.owner.term > of.term
             ? Aborted("a later life has the folder")
             : absl::OkStatus();
}

absl::Status FakeCheckpointFiles::Take(const JobLife& of, bool /*resume*/) {
  SHOAL_RETURN_IF_ERROR(CheckNewest(of));
  absl::MutexLock lock(&disk_.mutex);
  of_ = disk_.owner = of;
  term_ = ++disk_.term;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FakeCheckpointFiles::LastRecorded() {
  absl::MutexLock lock(&disk_.mutex);
  int64_t last = 0;
  std::istringstream lines(disk_.record);
  for (std::string line; std::getline(lines, line);) {
    last = Json::parse(line).value("number", last);
  }
  return last;
}

absl::Status FakeCheckpointFiles::Record(const std::string& lines) {
  absl::MutexLock lock(&disk_.mutex);
  disk_.record += lines;
  return absl::OkStatus();
}

// Of this run alone.
std::string FakeCheckpointFiles::PartOf(int64_t step) const {
  return fmt::format("step-{}.part-{}", step, term_);
}

absl::StatusOr<std::string> FakeCheckpointFiles::Create(int64_t step) {
  absl::MutexLock lock(&disk_.mutex);
  if (term_ != disk_.term) {
    return disk_.owner.job == of_.job && disk_.owner.term > of_.term
               ? Aborted("a later life has taken the folder")
               : AlreadyExists("another run has taken the folder");
  }
  if (disk_.complete.contains(step)) {
    return FailedPrecondition("step {} has a complete checkpoint", step);
  }
  const std::string path = PartOf(step);
  disk_.shards[path].clear();
  return path;
}

absl::Status FakeCheckpointFiles::Discard(int64_t step) {
  absl::MutexLock lock(&disk_.mutex);
  ++disk_.discarded;
  disk_.shards.erase(PartOf(step));
  return absl::OkStatus();
}

absl::StatusOr<std::string> FakeCheckpointFiles::Finish(
    const CompleteCheckpoint& checkpoint, const std::vector<proto::CheckpointShard>& shards) {
  absl::MutexLock lock(&disk_.mutex);
  if (!disk_.next_finish.ok() && disk_.failures_left-- > 0) {
    return disk_.next_finish;
  }
  const FakeDisk::Shards& written = disk_.shards[checkpoint.path];
  if (shards.empty() || shards.size() != written.size()) {
    return Internal("manifest of {} with {} of {} shards", checkpoint.path, written.size(),
                    shards.size());
  }
  const std::string path = PathOf(checkpoint.step);
  disk_.saved[path] = written;
  disk_.complete[checkpoint.step] = checkpoint;
  disk_.complete[checkpoint.step].path = path;
  return path;
}

std::string FakeCheckpointFiles::PathOf(int64_t step) const { return fmt::format("step-{}", step); }

std::string FakeCheckpointFiles::Find(int64_t step) {
  absl::MutexLock lock(&disk_.mutex);
  const auto found = disk_.complete.find(step);
  return found == disk_.complete.end() ? "" : found->second.path;
}

absl::StatusOr<std::string> FakeCheckpointFiles::Export(const std::string& checkpoint) {
  absl::MutexLock lock(&disk_.mutex);
  disk_.exported = checkpoint;
  return checkpoint + "-export";
}

LoadedJob MakeFakeJob(const FakeJobOptions& options, FakeDisk& disk) {
  LoadedJob job;
  job.job.train.steps = options.steps;
  job.job.cluster.servers = options.servers;
  job.job.cluster.workers = options.workers;
  job.last_step = options.steps;
  job.patience = absl::Seconds(job.job.cluster.start_timeout_seconds);
  job.flops = {.per_token = 2, .per_squared_token = 1};
  job.steps = std::make_unique<FakeSteps>(options.seed, options.samples);
  job.checkpoints = std::make_unique<FakeCheckpointFiles>(disk);
  if (options.pairs > 0) {
    job.pairs = std::make_unique<JobPairs>(
        plan::PreferenceOptions(),
        std::vector<ReplyTargets>(static_cast<size_t>(options.pairs), {1, 1}),
        std::vector<ReplyTargets>(static_cast<size_t>(options.validates ? options.samples : 0),
                                  {1, 1}));
    job.reference_file = "reference.f64";
    job.keep_references = [&disk](std::span<const double> references) {
      absl::MutexLock lock(&disk.mutex);
      disk.references.assign(references.begin(), references.end());
      return absl::OkStatus();
    };
    absl::MutexLock lock(&disk.mutex);
    // Where none are kept, it is of another number of pairs.
    job.pairs->SetReferences(disk.references).IgnoreError();
  }
  job.job.cluster.pipeline.stages = options.stages;
  job.pushes = {.unit_elements = {1},
                .per_pack = {static_cast<size_t>(options.stages), std::vector<int>{1}}};
  for (int server = 0; server < options.servers; ++server) {
    job.pushes.partitions.push_back({.id = server, .unit = 0, .offset = 0, .count = 1});
  }
  job.place_shards = [](int servers) {
    plan::ShardMap map = {.generation = 1};
    for (int server = 0; server < servers; ++server) {
      map.servers.push_back({server});
    }
    return map;
  };
  return job;
}

}  // namespace shoal::server::testing
