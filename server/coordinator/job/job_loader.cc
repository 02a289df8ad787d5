#include "server/coordinator/job/job_loader.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/partition.h"
#include "core/plan/pipeline/chosen_pipeline.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/plan/step/emulation.h"
#include "server/coordinator/job/checkpoint_folder.h"
#include "server/coordinator/job/dataset_steps.h"

namespace shoal::server {
namespace {

// What balances until measurements say more, if the job wants them to.
plan::CostModel CostOf(const plan::Job& job, const plan::ModelSpec& spec) {
  if (job.plan.cost == plan::CostSource::kTokens) {
    return plan::TokenCost();
  }
  return job.emulate.enabled() ? plan::DevicePace(job.emulate).cost() : plan::FlopCost(spec);
}

absl::StatusOr<std::unique_ptr<StepPlanner>> LoadSteps(const plan::Job& job,
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
  auto steps = DatasetSteps::Create(job, CostOf(job, spec), std::move(file));
  if (!steps.ok()) {
    return Annotate(steps.status(), token_file);
  }
  return std::unique_ptr<StepPlanner>(*std::move(steps));
}

void LogPipeline(const plan::PipelineChoice& choice, std::string_view why) {
  LogInfo("pipeline: {} over {} stages of {} chunks, {:.3g} of them offloaded, {} recompute: {}",
          plan::ToString(choice.schedule), choice.stages, choice.chunks, choice.offloaded_chunks,
          plan::Name(choice.recompute), why);
}

// As submitted, or planned for `workers`.
absl::StatusOr<proto::PipelinePlan> ChoosePipeline(const proto::SubmitJobRequest& request,
                                                   const plan::Job& job,
                                                   const plan::ModelSpec& spec,
                                                   const StepPlanner& steps, int64_t workers) {
  if (request.has_pipeline()) {
    SHOAL_ASSIGN_OR_RETURN(const plan::ChosenPipeline chosen,
                           plan::FromMessage(request.pipeline(), spec, job));
    LogPipeline(chosen.choice, "as submitted");
    return request.pipeline();
  }
  if (job.cluster.workers > 0) {
    workers = job.cluster.workers;
  }
  const int64_t groups = std::max<int64_t>(1, workers / job.cluster.pipeline.stages);
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

}  // namespace

absl::StatusOr<LoadedJob> LoadJob(const proto::SubmitJobRequest& request, int64_t workers) {
  LoadedJob loaded;
  loaded.token_file = request.token_file();
  loaded.trace = request.trace();
  SHOAL_ASSIGN_OR_RETURN(loaded.job, plan::FromMessage(request.job(), "the submitted job"));
  const plan::Job& job = loaded.job;
  loaded.last_step = job.train.steps;
  if (request.stop_after_step() < 0 || request.stop_after_step() > job.train.steps) {
    return InvalidArgument("cannot stop after step {}: train.steps is {}",
                           request.stop_after_step(), job.train.steps);
  }
  if (request.stop_after_step() > 0) {
    loaded.last_step = request.stop_after_step();
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, formats::ReadModelSpec(job.model));
  SHOAL_ASSIGN_OR_RETURN(const formats::SpecialTokens special,
                         formats::ReadSpecialTokens(job.model));
  SHOAL_ASSIGN_OR_RETURN(loaded.steps, LoadSteps(job, spec, request.token_file()));
  if (job.cluster.pipeline.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(loaded.pipeline,
                           ChoosePipeline(request, job, spec, *loaded.steps, workers));
  }
  loaded.place_shards = [partitions = plan::BuildPartitions(
                             plan::BuildUnits(spec), job.service.partition_bytes)](int servers) {
    return plan::PlaceShards(partitions, servers, /*generation=*/1);
  };
  loaded.checkpoints = std::make_unique<CheckpointFolder>(job, spec, special);
  return loaded;
}

}  // namespace shoal::server
