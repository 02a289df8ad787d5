#include "tests/simulation/sim_job.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::simulation {
namespace {

// Files of a process that may have ended, on a disk that may be full.
class SimCheckpointFiles final : public server::CheckpointFiles {
 public:
  SimCheckpointFiles(std::unique_ptr<server::CheckpointFiles> files,
                     std::function<absl::Status()> refuse)
      : files_(std::move(files)), refuse_(std::move(refuse)) {}

  absl::StatusOr<std::optional<server::CompleteCheckpoint>> Newest() override {
    return files_->Newest();
  }
  absl::Status Take(const server::JobLife& of, bool resume) override {
    SHOAL_RETURN_IF_ERROR(refuse_());
    return files_->Take(of, resume);
  }
  absl::Status CheckNewest(const server::JobLife& of) override { return files_->CheckNewest(of); }
  std::string PathOf(int64_t step) const override { return files_->PathOf(step); }
  absl::StatusOr<int64_t> LastRecorded() override { return files_->LastRecorded(); }
  absl::Status Record(const std::string& lines) override {
    SHOAL_RETURN_IF_ERROR(refuse_());
    return files_->Record(lines);
  }
  absl::StatusOr<std::string> Create(int64_t step) override {
    SHOAL_RETURN_IF_ERROR(refuse_());
    return files_->Create(step);
  }
  absl::Status Discard(int64_t step) override {
    SHOAL_RETURN_IF_ERROR(refuse_());
    return files_->Discard(step);
  }
  absl::StatusOr<std::string> Finish(const server::CompleteCheckpoint& checkpoint,
                                     const std::vector<proto::CheckpointShard>& shards) override {
    SHOAL_RETURN_IF_ERROR(refuse_());
    return files_->Finish(checkpoint, shards);
  }
  std::string Find(int64_t step) override { return files_->Find(step); }
  absl::StatusOr<std::string> Export(const std::string& checkpoint) override {
    return files_->Export(checkpoint);
  }

 private:
  const std::unique_ptr<server::CheckpointFiles> files_;
  const std::function<absl::Status()> refuse_;
};

}  // namespace

std::vector<int64_t> OfStage(std::vector<int64_t> samples, int stage) {
  for (int64_t& sample : samples) {
    sample += int64_t{1'000'000'000} * stage;
  }
  return samples;
}

SimJob::SimJob(const SimOptions& options, int number, server::testing::FakeDisk& disk)
    : options_(options),
      directory_(fmt::format("job-{}", number)),
      disk_(disk),
      steps_(options.seed, options.samples),
      model_(options.seed * 8 + static_cast<uint64_t>(number), options.model_growth),
      description_(Describe()),
      message_(plan::ToMessage(description_)),
      states_{model_.Initial()} {}

int64_t SimJob::last_step() const {
  return options_.stop_after > 0 ? options_.stop_after : options_.steps;
}

plan::Job SimJob::Describe() const {
  plan::Job job;
  job.train.steps = options_.steps;
  job.service.on_server_loss = options_.on_server_loss;
  job.service.replicas = options_.replicas;
  job.service.read_replicas = options_.read_replicas;
  job.service.accumulate = options_.exact ? plan::Accumulate::kExact : plan::Accumulate::kFloat;
  job.train.exact_devices = options_.exact_devices;
  job.cluster.servers = options_.servers;
  job.cluster.workers = options_.workers;
  job.checkpoint.directory = directory_;
  job.cluster.pipeline.stages = options_.stages;
  job.cluster.lease_seconds = options_.lease_seconds;
  job.cluster.start_timeout_seconds = options_.start_timeout_seconds;
  job.cluster.recovery_timeout_seconds = options_.recovery_timeout_seconds;
  job.cluster.min_workers = options_.min_workers;
  job.cluster.min_servers = options_.min_servers;
  job.cluster.elastic = options_.elastic;
  job.queue.max_restarts = options_.max_restarts;
  job.checkpoint.every_steps = options_.checkpoint_every;
  job.checkpoint.every_seconds = options_.checkpoint_seconds;
  if (options_.validate_every > 0) {
    job.data.validation = {.path = "validation", .every_steps = options_.validate_every};
  }
  job.train.early_stop.patience = options_.patience;
  job.checkpoint.best = options_.keep_best;
  job.train.skip_step.nonfinite = options_.skip_nonfinite;
  job.plan.assignment = options_.draw ? plan::Assignment::kDynamic : plan::Assignment::kAuto;
  job.train.synchronization =
      options_.layer ? plan::Synchronization::kLayer : plan::Synchronization::kStep;
  return job;
}

proto::SubmitJobRequest SimJob::Request() const {
  proto::SubmitJobRequest request;
  *request.mutable_job() = message_;
  request.set_resume(options_.resume);
  request.set_trace(options_.trace);
  request.set_stop_after_step(options_.stop_after);
  request.set_wait_for_servers(options_.stays);
  return request;
}

server::LoadedJob SimJob::Load(const proto::SubmitJobRequest& request,
                               std::function<absl::Status()> refuse) {
  server::LoadedJob job = server::testing::MakeFakeJob({.steps = options_.steps,
                                                        .servers = options_.servers,
                                                        .workers = options_.workers,
                                                        .stages = options_.stages,
                                                        .samples = options_.samples,
                                                        .pairs = options_.pairs,
                                                        .validates = options_.validate_every > 0,
                                                        .seed = options_.seed},
                                                       disk_);
  job.job = description_;
  const std::vector<int> every_unit(model_.units().size(), 1);
  job.pushes = {.partitions = model_.partitions(),
                .per_pack = {static_cast<size_t>(options_.stages), every_unit}};
  for (const plan::UnitSpec& unit : model_.units()) {
    job.pushes.unit_elements.push_back(unit.count);
  }
  job.place_shards = [this](int servers) {
    return plan::PlaceShards(model_.partitions(), servers, /*generation=*/1);
  };
  job.request = request;
  job.trace = request.trace();
  job.last_step = last_step();
  job.patience =
      options_.stays ? absl::InfiniteDuration() : absl::Seconds(options_.start_timeout_seconds);
  job.checkpoints =
      std::make_unique<SimCheckpointFiles>(std::move(job.checkpoints), std::move(refuse));
  return job;
}

std::vector<int64_t> SimJob::SamplesOf(int64_t step) const {
  std::vector<int64_t> all;
  for (int stage = 0; stage < options_.stages; ++stage) {
    const std::vector<int64_t> part = OfStage(steps_.Samples(step), stage);
    all.insert(all.end(), part.begin(), part.end());
  }
  std::ranges::sort(all);
  return all;
}

const ModelState& SimJob::StateAfter(int64_t step) {
  while (std::ssize(states_) <= step) {
    const int64_t next = std::ssize(states_);
    states_.push_back(model_.After(states_.back(), next, SamplesOf(next), steps_.LearningRate(next),
                                   description_.train));
  }
  return states_[static_cast<size_t>(step)];
}

std::vector<float> SimJob::GradientOf(int64_t step) {
  return model_.Gradient(StateAfter(step - 1).of(server::StateArray::kMaster), SamplesOf(step));
}

std::pair<int64_t, ModelState> SimJob::Saved(const std::string& path) const {
  std::pair<int64_t, ModelState> saved = {0, model_.Initial()};
  for (const auto& [step, checkpoint] : disk_.complete) {
    if (checkpoint.path == path) {
      saved.first = step;
      for (const auto& [server, shard] : disk_.saved.at(path)) {
        ReadShard(shard, model_, saved.second);
      }
    }
  }
  return saved;
}

double SimJob::LossOf(int64_t step) const {
  double loss = 0;
  double targets = 0;
  for (const int64_t sample : steps_.Samples(step)) {
    loss += server::testing::FakeSteps::Loss(sample);
    targets += static_cast<double>(server::testing::FakeSteps::Targets(sample));
  }
  return loss / targets;
}

}  // namespace shoal::simulation
