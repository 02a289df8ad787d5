// `shoal plan`: says what a job will need and move, and whether on-demand communication will help,
// without running it.
#include <algorithm>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "cli/plan/job_report.h"
#include "cli/plan/kubernetes_patch.h"
#include "cli/plan/pipeline_report.h"
#include "cli/plan/servers_report.h"
#include "cli/plan/simulation.h"
#include "cli/run/command.h"
#include "cli/run/machine.h"
#include "cli/run/preflight.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/step/cost_model.h"
#include "core/plan/step/step_plan.h"

namespace shoal::cli {
namespace {

struct PlanCommandOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string cluster;  // file; empty: the job's workers, equal devices
  int64_t steps = 3;    // whose microbatches are planned; needs the data
  std::string draw;     // SVG file; empty: none
  bool json = false;
  bool kubernetes = false;
  std::string servers;  // a range: what each number of them needs; empty: the job's alone
};

// Returns the traffic of a group's workers with these microbatches.
absl::StatusOr<plan::StepTraffic> TrafficOf(const JobReport& planned,
                                            const std::vector<plan::Microbatch>& microbatches) {
  const plan::WorkerPolicy& policy = planned.memory.policy;
  if (!planned.pipeline.has_value() || microbatches.empty()) {
    return plan::PlanTraffic(planned.spec, planned.job, policy,
                             static_cast<int64_t>(microbatches.size()));
  }
  std::vector<plan::MicrobatchSize> sizes;
  for (const plan::Microbatch& microbatch : microbatches) {
    sizes.push_back({.tokens = microbatch.tokens, .squared_tokens = microbatch.squared_tokens});
  }
  SHOAL_ASSIGN_OR_RETURN(
      const std::vector<plan::StageNeeds> stages,
      plan::StageNeedsOf(planned.spec, planned.job, planned.pipeline->plan.chosen().choice, sizes));
  plan::StepTraffic sum;
  for (const plan::StageNeeds& stage : stages) {
    sum += plan::PlanTraffic(planned.spec, planned.job, policy, stage);
  }
  return sum;
}

// Returns the mean traffic of all workers over the planned steps.
absl::StatusOr<plan::StepTraffic> MeanTraffic(const JobReport& planned) {
  plan::StepTraffic sum;
  for (const plan::StepPlan& step : planned.steps) {
    for (const auto& group : step.workers) {
      SHOAL_ASSIGN_OR_RETURN(const plan::StepTraffic traffic, TrafficOf(planned, group));
      sum += traffic;
    }
  }
  const auto steps = static_cast<int64_t>(std::max<size_t>(1, planned.steps.size()));
  return plan::StepTraffic{sum.get_bytes / steps, sum.push_bytes / steps, sum.fetches / steps,
                           sum.pushes / steps};
}

absl::StatusOr<JobReport> MakePlan(const PlanCommandOptions& options) {
  JobReport planned;
  SHOAL_ASSIGN_OR_RETURN(planned.job, ReadJob(options.job_file, options.overrides));
  // Shows one of each if the job leaves the counts to a running coordinator.
  planned.job.cluster.servers = std::max<int64_t>(1, planned.job.cluster.servers);
  planned.job.cluster.workers =
      std::max<int64_t>(planned.job.cluster.pipeline.stages, planned.job.cluster.workers);
  const auto spec = formats::ReadModelSpec(planned.job.model);
  SHOAL_RETURN_IF_ERROR(AtKey(spec.status(), "model", options.job_file, options.overrides));
  const auto adapted = plan::WithJobAdapters(*spec, planned.job);
  SHOAL_RETURN_IF_ERROR(AtItsKey(adapted.status(), options.job_file, options.overrides));
  planned.spec = *adapted;
  planned.units = plan::JobUnits(planned.spec, planned.job.train);
  planned.partitions = plan::BuildPartitions(planned.units, planned.job.service.partition_bytes);
  planned.shards =
      plan::PlaceShards(planned.partitions, static_cast<int>(planned.job.cluster.servers), 1);
  std::optional<Machine> machine;
  absl::Status settled;
  if (planned.job.cluster.local) {
    machine = ExamineMachine();
  }
  if (machine.has_value() && machine->memory.ok()) {
    auto line = SettleRecompute(planned.job, planned.spec, machine->memory->available);
    settled = line.status();
    planned.recompute = line.ok() ? *std::move(line) : "";
  }
  SHOAL_ASSIGN_OR_RETURN(planned.simulation, OpenSimulation({.job_file = options.job_file,
                                                             .overrides = options.overrides,
                                                             .cluster = options.cluster}));
  if (!planned.job.cluster.pipeline.enabled()) {
    planned.job.preference.reference = planned.simulation.options.job.preference.reference;
  }
  SHOAL_ASSIGN_OR_RETURN(planned.verdict,
                         AskWhetherOnDemandHelps(planned.simulation, kVerdictSteps));
  SHOAL_ASSIGN_OR_RETURN(
      planned.steps,
      PlanFirstSteps(planned.job, planned.spec, planned.simulation.minibatches, options.steps));
  std::span<const plan::StageNeeds> stages;
  if (planned.job.cluster.pipeline.enabled()) {
    auto pipeline = ReportPipeline(planned.job, planned.spec, planned.simulation.minibatches);
    SHOAL_RETURN_IF_ERROR(
        AtKey(pipeline.status(), PipelineKey(planned.job), options.job_file, options.overrides));
    planned.pipeline = *std::move(pipeline);
    stages = planned.pipeline->stages;
  }
  SHOAL_ASSIGN_OR_RETURN(planned.memory,
                         CheckMemory(planned.spec, planned.job, /*available_bytes=*/0, stages));
  if (machine.has_value() && machine->memory.ok()) {
    planned.fit = {.available_bytes = machine->memory->available,
                   .cores = UsableCores(*machine),
                   .memory = settled.ok() ? CheckMemory(planned.spec, planned.job,
                                                        machine->memory->available, stages)
                                                .status()
                                          : settled};
  }
  int64_t microbatches = 0;
  for (const plan::StepPlan& step : planned.steps) {
    for (const auto& worker : step.workers) {
      microbatches += static_cast<int64_t>(worker.size());
    }
  }
  SHOAL_ASSIGN_OR_RETURN(planned.traffic, MeanTraffic(planned));
  planned.microbatches_per_worker =
      static_cast<double>(microbatches) /
      static_cast<double>(
          std::max<int64_t>(1, planned.memory.groups * static_cast<int64_t>(planned.steps.size())));
  return planned;
}

absl::StatusOr<std::vector<ServersSize>> MakeSizes(const PlanCommandOptions& options,
                                                   const JobReport& planned) {
  if (options.servers.empty()) {
    return std::vector<ServersSize>();
  }
  SHOAL_ASSIGN_OR_RETURN(const ServersRange range, ParseServersRange(options.servers));
  return PlanServerSizes(planned.job, planned.partitions, range);
}

absl::StatusOr<ExitCode> RunPlan(const PlanCommandOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const JobReport planned, MakePlan(options));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<ServersSize> sizes, MakeSizes(options, planned));
  if (!options.draw.empty()) {
    if (!planned.pipeline.has_value()) {
      return InvalidArgument(
          "--draw draws the schedule of a pipeline, and {} has none: see "
          "cluster.pipeline in docs/job-file.md",
          options.job_file);
    }
    SHOAL_RETURN_IF_ERROR(DrawPipeline(*planned.pipeline, options.draw));
  }
  if (planned.pipeline.has_value()) {
    const std::string warning = WarningOf(*planned.pipeline);
    streams.err << (warning.empty() ? "" : "shoal: warning: " + warning + "\n");
  }
  const std::optional<sim::LossCosts> losses = PlanLossCosts(planned);
  if (options.kubernetes) {
    streams.out << KubernetesPatch(options.job_file, planned.job, planned.memory);
  } else if (options.json) {
    PrintJsonPlan(planned, streams);
    if (losses.has_value()) {
      PrintJsonLossCosts(*losses, streams);
    }
    PrintJsonServerSizes(sizes, streams);
  } else {
    PrintPlan(planned, streams);
    if (losses.has_value()) {
      PrintLossCosts(*losses, streams);
    }
    if (!sizes.empty()) {
      PrintServerSizes(sizes, streams);
    }
  }
  return ExitCode::kDone;
}

}  // namespace

void AddPlan(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<PlanCommandOptions>();
  CLI::App* command =
      AddCommand(app, "plan", "What a job will need and move, and whether on demand will help it",
                 "shoal plan job.yaml");
  command->add_option("job", options->job_file, "Job file (YAML)")->required();
  command->add_option("--set", options->overrides, "KEY=VALUE over the file's (may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--cluster", options->cluster,
                      "Cluster file (docs/on-demand.md) to say whether on demand will help there; "
                      "without, the job's workers as equal devices");
  command->add_option("--steps", options->steps, "Plan the microbatches of this many steps")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option(
      "--draw", options->draw,
      "SVG file for a drawing of the pipeline's schedule, as it is reckoned to run");
  CLI::Option* json = command->add_flag("--json", options->json, "JSON lines instead of tables");
  CLI::Option* servers = command->add_option(
      "--servers", options->servers,
      "A range, like 2..8: also what each number of servers needs, and the state that moves when "
      "one is added");
  command
      ->add_flag("--kubernetes", options->kubernetes,
                 "A patch of deploy/kubernetes instead: replicas, memory, GPUs, grace periods")
      ->excludes(json)
      ->excludes(servers);
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunPlan(*options, streams); };
  });
}

}  // namespace shoal::cli
