#include "server/coordinator/job_loader.h"

#include "common/status.h"
#include "formats/hf_model.h"
#include "plan/emulation.h"
#include "plan/partition.h"
#include "server/coordinator/checkpoint_folder.h"
#include "server/coordinator/dataset_steps.h"

namespace shoal::server {
namespace {

// What balances until measurements say more, if the job wants them to.
plan::CostModel CostOf(const plan::Job& job, const plan::ModelSpec& spec) {
  if (job.plan.cost == plan::CostSource::kTokens) {
    return plan::TokenCost();
  }
  return job.emulate.enabled() ? plan::DevicePace(job.emulate).cost() : plan::FlopCost(spec);
}

absl::StatusOr<std::unique_ptr<StepSource>> LoadSteps(const plan::Job& job,
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
  return std::unique_ptr<StepSource>(*std::move(steps));
}

}  // namespace

absl::StatusOr<LoadedJob> LoadJob(const proto::SubmitJobRequest& request) {
  LoadedJob loaded;
  loaded.job_yaml = request.job_yaml();
  loaded.token_file = request.token_file();
  loaded.trace = request.trace();
  SHOAL_ASSIGN_OR_RETURN(loaded.job, plan::ParseJob(request.job_yaml(), "the submitted job"));
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
  loaded.place_shards = [partitions = plan::BuildPartitions(
                             plan::BuildUnits(spec), job.service.partition_bytes)](int servers) {
    return plan::PlaceShards(partitions, servers, /*generation=*/1);
  };
  loaded.checkpoints = std::make_unique<CheckpointFolder>(job, request.job_yaml(), spec, special);
  return loaded;
}

}  // namespace shoal::server
