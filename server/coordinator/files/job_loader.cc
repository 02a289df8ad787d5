#include "server/coordinator/files/job_loader.h"

#include <algorithm>
#include <numeric>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/data/token_file.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/job/model_files_message.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/model_files.h"
#include "core/model/partition.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/pipeline/chosen_pipeline.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/plan/placement/placement.h"
#include "core/plan/schedule/stage_units.h"
#include "core/plan/step/emulation.h"
#include "core/plan/step/minibatch.h"
#include "core/plan/step/step_plan.h"
#include "server/coordinator/files/checkpoint_folder.h"
#include "server/coordinator/pairs/job_pairs.h"
#include "server/coordinator/pairs/reference_file.h"

namespace shoal::server {
namespace {

// In the given order.
std::vector<plan::SampleLength> LengthsOf(const formats::TokenFile& file,
                                          const std::vector<int64_t>& ids) {
  std::vector<plan::SampleLength> lengths;
  lengths.reserve(ids.size());
  for (const int64_t id : ids) {
    lengths.push_back({.sample = id,
                       .tokens = file.tokens(id),
                       .targets = file.targets(id),
                       .weight = file.weight(id),
                       .first_tokens = file.chosen(id).tokens});
  }
  return lengths;
}

// Steps from a token file: the walk over the dataset, packed and balanced as the job says. `cost`
// balances unless a plan's inputs have another. `validation` may be null.
class DatasetSteps final : public StepPlanner {
 public:
  DatasetSteps(plan::Job job, plan::CostModel cost, std::unique_ptr<formats::TokenFile> file,
               std::unique_ptr<formats::TokenFile> validation)
      : job_(std::move(job)),
        cost_(std::move(cost)),
        file_(std::move(file)),
        dataset_{file_->samples(), {file_->source_samples(), job_.data.weights()}},
        validation_(std::move(validation)) {}

  absl::StatusOr<plan::StepPlan> Plan(int64_t step, const PlanInputs& inputs) const override {
    const std::vector<int64_t> ids = plan::MinibatchSamples(
        step, job_.train.minibatch_samples, dataset_, job_.data.seed, job_.data.shuffle);
    return plan::PlanStep(LengthsOf(*file_, ids),
                          plan::StepPlanOptionsOf(job_, inputs.groups, inputs.speeds),
                          inputs.cost.value_or(cost_));
  }
  absl::StatusOr<plan::StepPlan> PlanValidation(const PlanInputs& inputs) const override {
    const int64_t all = validation_->samples();
    const int64_t limit = job_.data.validation.limit;
    const int64_t count = limit > 0 ? std::min(limit, all) : all;
    const std::vector<int64_t> ids =
        plan::MinibatchSamples(/*step=*/1, count, all, job_.data.seed, /*shuffle=*/count < all);
    return plan::PlanStep(LengthsOf(*validation_, ids),
                          plan::ValidationPlanOptionsOf(job_, inputs.groups, inputs.speeds), cost_);
  }
  absl::StatusOr<plan::StepPlan> PlanForward(bool of_validation, int64_t first, int64_t count,
                                             const PlanInputs& inputs) const override {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    return plan::PlanStep(LengthsOf(of_validation ? *validation_ : *file_, ids),
                          plan::ValidationPlanOptionsOf(job_, inputs.groups, inputs.speeds), cost_);
  }
  double LearningRate(int64_t step) const override {
    return plan::LearningRateAt(job_.train, step);
  }

 private:
  const plan::Job job_;
  const plan::CostModel cost_;
  const std::unique_ptr<formats::TokenFile> file_;
  const plan::Dataset dataset_;
  const std::unique_ptr<formats::TokenFile> validation_;
};

// What balances until measurements say more, if the job wants them to.
plan::CostModel CostOf(const plan::Job& job, const plan::ModelSpec& spec) {
  if (job.plan.cost == plan::CostSource::kTokens) {
    return plan::TokenCost();
  }
  return job.emulate.enabled() ? plan::DevicePace(job.emulate).cost() : plan::FlopCost(job, spec);
}

absl::StatusOr<std::unique_ptr<formats::TokenFile>> OpenDataset(const plan::Job& job,
                                                                const plan::ModelSpec& spec,
                                                                const std::string& token_file) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<formats::TokenFile> file,
                         formats::TokenFile::Open(token_file));
  if (file->vocabulary() > spec.vocabulary) {
    return InvalidArgument(
        "{} was made with a tokenizer of {} tokens, the model {} has {}: prepare the data with the "
        "model's own tokenizer",
        token_file, file->vocabulary(), job.model, spec.vocabulary);
  }
  if (const bool pairs = job.train.objective == plan::Objective::kDpo; file->pairs() != pairs) {
    return InvalidArgument("{} has {}pairs of replies, which train.objective: dpo takes",
                           token_file, pairs ? "no " : "");
  }
  if (file->samples() == 0) {
    return Annotate(InvalidArgument("the dataset has no sample"), token_file);
  }
  return file;
}

// Each source with a weight has samples, and some in each pass.
absl::Status CheckMixture(const plan::Job& job, const formats::TokenFile& file,
                          const std::string& token_file) {
  const plan::Mixture mixture = {file.source_samples(), job.data.weights()};
  if (mixture.weights.empty()) {
    return absl::OkStatus();
  }
  if (mixture.samples.size() != mixture.weights.size()) {
    return InvalidArgument("{} has {} sources, and data.mixture has {}: prepare the data again",
                           token_file, mixture.samples.size(), mixture.weights.size());
  }
  const std::vector<int64_t> shares = plan::SharesOfPass(mixture);
  const auto none = std::ranges::find(shares, 0);
  return none == shares.end()
             ? absl::OkStatus()
             : InvalidArgument(
                   "data.mixture: with a weight of {:g} {} has no sample in a pass of "
                   "{}: give it more, or leave it out",
                   mixture.weights[static_cast<size_t>(none - shares.begin())],
                   job.data.mixture[static_cast<size_t>(none - shares.begin())].path,
                   file.samples());
}

absl::StatusOr<std::unique_ptr<StepPlanner>> LoadSteps(const plan::Job& job,
                                                       const plan::ModelSpec& spec,
                                                       const proto::SubmitJobRequest& request) {
  SHOAL_ASSIGN_OR_RETURN(auto file, OpenDataset(job, spec, request.token_file()));
  SHOAL_RETURN_IF_ERROR(CheckMixture(job, *file, request.token_file()));
  std::unique_ptr<formats::TokenFile> validation;
  if (job.data.validation.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(validation, OpenDataset(job, spec, request.validation_file()));
  }
  return std::make_unique<DatasetSteps>(job, CostOf(job, spec), std::move(file),
                                        std::move(validation));
}

absl::StatusOr<std::vector<ReplyTargets>> TargetsOf(const std::string& token_file) {
  SHOAL_ASSIGN_OR_RETURN(const auto file, formats::TokenFile::Open(token_file));
  std::vector<ReplyTargets> targets;
  for (int64_t i = 0; i < file->samples(); ++i) {
    const int64_t chosen = file->chosen(i).targets;
    targets.push_back({.chosen = chosen, .rejected = file->targets(i) - chosen});
  }
  return targets;
}

// With what is kept of their references.
absl::Status LoadPairs(const proto::SubmitJobRequest& request, const plan::Rope& rope,
                       LoadedJob& loaded) {
  const plan::Job& job = loaded.job;
  const bool validates = job.data.validation.enabled();
  SHOAL_ASSIGN_OR_RETURN(std::vector<ReplyTargets> train, TargetsOf(request.token_file()));
  std::vector<ReplyTargets> validation;
  if (validates) {
    SHOAL_ASSIGN_OR_RETURN(validation, TargetsOf(request.validation_file()));
  }
  loaded.pairs =
      std::make_unique<JobPairs>(job.preference, std::move(train), std::move(validation));
  if (!job.preference.precomputes()) {
    return absl::OkStatus();
  }
  const bool by_length = rope.scaling && rope.scaling->type == plan::RopeType::kLongRope;
  SHOAL_ASSIGN_OR_RETURN(
      loaded.reference_file,
      ReferencePath({.token_file = request.token_file(),
                     .validation_file = validates ? request.validation_file() : "",
                     .model = job.model,
                     .adapter = job.lora.from,
                     .compute = std::string(Name(plan::ComputeDType(job))),
                     .wire = std::string(Name(job.service.wire_type)),
                     .longest = by_length ? job.data.max_sequence_tokens : 0}));
  loaded.keep_references = [file = loaded.reference_file](std::span<const double> references) {
    return WriteReferences(file, references);
  };
  absl::StatusOr<std::vector<double>> read = ReadReferences(loaded.reference_file);
  const absl::Status kept =
      read.ok() ? loaded.pairs->SetReferences(*std::move(read)) : read.status();
  LogInfo("references of the pairs, in {}: {}", loaded.reference_file,
          kept.ok() ? loaded.pairs->Progress() : std::string(Message(kept)));
  return absl::OkStatus();
}

void LogPipeline(const plan::PipelineChoice& choice, std::string_view why) {
  LogInfo("pipeline: {} over {} stages of {} chunks, {:.3g} of them offloaded, {} recompute: {}",
          plan::ToString(choice.schedule), choice.stages, choice.chunks, choice.offloaded_chunks,
          plan::Name(choice.recompute), why);
}

// As submitted, or planned for `groups` of workers.
absl::StatusOr<proto::PipelinePlan> ChoosePipeline(const proto::SubmitJobRequest& request,
                                                   const plan::Job& job,
                                                   const plan::ModelSpec& spec,
                                                   const StepPlanner& steps, int64_t groups) {
  if (request.has_pipeline()) {
    SHOAL_ASSIGN_OR_RETURN(const plan::ChosenPipeline chosen,
                           plan::FromMessage(request.pipeline(), spec, job));
    LogPipeline(chosen.choice, "as submitted");
    return request.pipeline();
  }
  std::vector<plan::StepPlan> typical;
  for (int64_t step = 1; step <= std::min(plan::kTypicalSteps, job.train.steps); ++step) {
    SHOAL_ASSIGN_OR_RETURN(typical.emplace_back(),
                           steps.Plan(step, {.groups = static_cast<int>(groups)}));
  }
  SHOAL_ASSIGN_OR_RETURN(
      const plan::PipelineRequest heaviest,
      plan::PipelineRequestOf(spec, job, plan::HeaviestStep(typical, job.data.microbatch_tokens)));
  SHOAL_ASSIGN_OR_RETURN(const plan::PipelinePlan planned, plan::PlanPipeline(heaviest));
  LogPipeline(planned.chosen().choice, planned.chosen().verdict);
  return plan::ToMessage({planned.chosen().choice, heaviest.microbatches});
}

absl::StatusOr<PushPlan> PushPlanOf(const plan::ModelSpec& spec, const plan::Job& job,
                                    const std::optional<proto::PipelinePlan>& pipeline) {
  PushPlan pushes;
  const std::vector<plan::UnitSpec> units = plan::JobUnits(spec, job.train);
  pushes.partitions = plan::BuildPartitions(units, job.service.partition_bytes);
  for (const plan::UnitSpec& unit : units) {
    pushes.unit_elements.push_back(unit.count);
  }
  if (!pipeline.has_value()) {
    pushes.per_pack.push_back(plan::KeysPerPack(spec, job));
    return pushes;
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::ChosenPipeline chosen,
                         plan::FromMessage(*pipeline, spec, job));
  for (int stage = 0; stage < static_cast<int>(job.cluster.pipeline.stages); ++stage) {
    pushes.per_pack.push_back(plan::PushesPerPack(
        job,
        plan::TrainedContributions(units, plan::StageContributions(spec, chosen.ChunksOf(stage)))));
  }
  return pushes;
}

// What each needs beside what a server takes that has no job.
std::vector<int64_t> ServersBytes(const plan::Job& job,
                                  const std::vector<plan::PartitionSpec>& partitions,
                                  int64_t clients, const plan::ShardMap& map, int servers) {
  std::vector<int64_t> bytes;
  for (const plan::ServerMemory& memory :
       plan::PlanServers(job, partitions, map, servers, clients)) {
    bytes.push_back(memory.total() - plan::kServerProcessBytes);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<LoadedJob> LoadJob(const proto::SubmitJobRequest& request, int64_t workers) {
  LoadedJob loaded;
  loaded.token_file = request.token_file();
  loaded.trace = request.trace();
  SHOAL_ASSIGN_OR_RETURN(loaded.job, plan::FromMessage(request.job(), "the submitted job"));
  plan::Job& job = loaded.job;
  const int64_t groups = std::max<int64_t>(
      1, (job.cluster.workers > 0 ? job.cluster.workers : workers) / job.cluster.pipeline.stages);
  job.plan.pack_groups = plan::PackGroups(job, groups);
  loaded.last_step = job.train.steps;
  if (request.stop_after_step() < 0 || request.stop_after_step() > job.train.steps) {
    return InvalidArgument("cannot stop after step {}: train.steps is {}",
                           request.stop_after_step(), job.train.steps);
  }
  if (request.stop_after_step() > 0) {
    loaded.last_step = request.stop_after_step();
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, plan::ReadJobModel(job));
  if (!job.emulate.enabled()) {
    loaded.flops = plan::FlopCost(job, spec);
  }
  SHOAL_ASSIGN_OR_RETURN(const formats::SpecialTokens special,
                         formats::ReadSpecialTokens(job.model));
  SHOAL_ASSIGN_OR_RETURN(loaded.steps, LoadSteps(job, spec, request));
  if (job.train.objective == plan::Objective::kDpo) {
    SHOAL_RETURN_IF_ERROR(LoadPairs(request, spec.attention().rope, loaded));
  }
  if (job.cluster.pipeline.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(loaded.pipeline,
                           ChoosePipeline(request, job, spec, *loaded.steps, groups));
  }
  loaded.request = request;
  *loaded.request.mutable_job() = plan::ToMessage(job);
  if (spec.from_files && request.model_files().empty()) {  // else as an earlier life began with
    SHOAL_ASSIGN_OR_RETURN(const auto files, formats::ReadFiles(job.model));
    plan::AddTo(files, *loaded.request.mutable_model_files());
  }
  if (loaded.pipeline.has_value()) {
    *loaded.request.mutable_pipeline() = *loaded.pipeline;
  }
  loaded.patience = request.wait_for_servers() ? absl::InfiniteDuration()
                                               : absl::Seconds(job.cluster.start_timeout_seconds);
  SHOAL_ASSIGN_OR_RETURN(loaded.pushes, PushPlanOf(spec, job, loaded.pipeline));
  loaded.place_shards = [partitions = loaded.pushes.partitions](int servers) {
    return plan::PlaceShards(partitions, servers, /*generation=*/1);
  };
  if (!job.cluster.local) {  // else shoal train has looked at the whole machine
    loaded.server_bytes = [job, partitions = loaded.pushes.partitions,
                           clients = groups * job.cluster.pipeline.stages,
                           place = loaded.place_shards](int servers) {
      return ServersBytes(job, partitions, clients,
                          plan::WithBackups(partitions, place(servers), plan::FirstServers(servers),
                                            job.service.replicas),
                          servers);
    };
  }
  loaded.checkpoints =
      MakeCheckpointFolder(job, spec, special, plan::FromMessage(loaded.request.model_files()));
  return loaded;
}

}  // namespace shoal::server
