#include "cli/plan/simulation.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "cli/data/training_data.h"
#include "cli/run/preflight.h"
#include "cli/run/temporary_folder.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/token_file.h"
#include "core/job/job_model.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/step/lengths.h"
#include "core/plan/step/minibatch.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using plan::Assignment;
using plan::Synchronization;

constexpr int64_t kMaximumClusterFile = 1 * kMiB;
// A smaller distance from 1 is neither gain nor loss.
constexpr double kWorthSaying = 0.01;

absl::StatusOr<plan::ModelSpec> NamedSpec(const std::string& shape) {
  const auto spec = plan::NamedShape(shape);
  if (!spec.has_value()) {
    return InvalidArgument("--shape {}: choose one of {}", shape,
                           fmt::join(plan::NamedShapes(), ", "));
  }
  return *spec;
}

// Opens the model whose units travel and the one that sets the pace. Simulates a job with emulated
// devices as it will run here, or with a cluster as the shape would run there.
absl::Status OpenModel(const SimulationSource& source, Simulation& simulation) {
  const plan::Job& job = simulation.options.job;
  const std::string shape = source.shape.empty() ? job.emulate.shape : source.shape;
  const bool as_emulated = source.shape.empty() && source.cluster.empty();
  if (!shape.empty() && !as_emulated) {
    SHOAL_ASSIGN_OR_RETURN(plan::ModelSpec spec, NamedSpec(shape));
    SHOAL_ASSIGN_OR_RETURN(simulation.options.spec, plan::WithJobAdapters(std::move(spec), job));
  } else {
    SHOAL_ASSIGN_OR_RETURN(simulation.options.spec, plan::ReadJobModel(job));
    if (!shape.empty()) {
      SHOAL_ASSIGN_OR_RETURN(simulation.options.shape, NamedSpec(shape));
    }
  }
  simulation.title = fmt::format(
      "simulated: {} ({} parameters)",
      shape.empty() ? std::filesystem::path(job.model).filename().string() : shape,
      WithThousands(
          plan::ParameterCount(simulation.options.shape.value_or(simulation.options.spec))));
  return absl::OkStatus();
}

// Makes one device of each worker or worker group: the stages of a group share its microbatches.
plan::ClusterSpec ClusterOf(const plan::Job& job) {
  plan::ClusterSpec cluster;
  const int64_t workers = std::max<int64_t>(1, job.cluster.workers / job.cluster.pipeline.stages);
  if (!job.emulate.enabled()) {
    cluster.devices = {{.count = workers}};
    cluster.devices[0].flops *= static_cast<double>(job.cluster.pipeline.stages);
    return cluster;
  }
  cluster.devices.clear();
  const std::vector<double>& speeds = job.emulate.speeds;
  for (int64_t worker = 0; worker < workers; ++worker) {
    cluster.devices.push_back({.flops = job.emulate.device_flops,
                               .speed = speeds[static_cast<size_t>(worker) % speeds.size()]});
  }
  return cluster;
}

absl::Status OpenCluster(const SimulationSource& source, Simulation& simulation) {
  if (!source.cluster.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(source.cluster, kMaximumClusterFile));
    SHOAL_ASSIGN_OR_RETURN(simulation.options.cluster, plan::ParseCluster(yaml, source.cluster));
    return absl::OkStatus();
  }
  const plan::Job& job = simulation.options.job;
  simulation.options.cluster = ClusterOf(job);
  simulation.notes.push_back(fmt::format(
      "without --cluster, {} are taken for devices{}, and transfers to take no time",
      job.emulate.enabled()             ? "the job's emulated workers"
      : job.cluster.pipeline.stages > 1 ? "the job's worker groups"
                                        : "the job's workers",
      job.emulate.enabled()
          ? ""
          : fmt::format(" of {:g} FLOP/s each", simulation.options.cluster.devices[0].flops)));
  return absl::OkStatus();
}

void SettlePolicy(bool with_links, Simulation& simulation) {
  const plan::TrainOptions& train = simulation.options.job.train;
  const bool open =
      train.residency == plan::Residency::kAuto || train.push == plan::PushPolicy::kAuto;
  simulation.options.policy = {
      train.residency == plan::Residency::kAuto ? plan::Residency::kLayer : train.residency,
      train.push == plan::PushPolicy::kAuto ? plan::PushPolicy::kMicrobatch : train.push};
  if (open && with_links) {
    simulation.notes.emplace_back(
        "what train.residency and train.push leave open is as in sharded training: weights are "
        "fetched for each use, gradients pushed after each microbatch");
  }
}

std::string NamesOf(const std::vector<std::string>& paths) {
  return absl::StrJoin(paths, " + ", [](std::string* out, const std::string& path) {
    out->append(std::filesystem::path(path).filename().string());
  });
}

absl::Status OpenLengths(const SimulationSource& source, Simulation& simulation) {
  plan::Job& job = simulation.options.job;
  if (source.lengths.empty()) {
    SHOAL_ASSIGN_OR_RETURN(simulation.minibatches, DataMinibatches(job));
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::LengthDistribution lengths,
                         plan::ParseLengths(source.lengths));
  if (lengths.high > job.data.microbatch_tokens) {
    simulation.notes.push_back(
        fmt::format("data.microbatch_tokens is taken as {}, the longest of {}, not {}",
                    lengths.high, source.lengths, job.data.microbatch_tokens));
    job.data.microbatch_tokens = lengths.high;
  }
  simulation.minibatches =
      sim::DrawnMinibatches(lengths, job.train.minibatch_samples, job.data.seed);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<sim::Minibatches> TokenFileMinibatches(const plan::Job& job,
                                                      const std::string& token_file) {
  SHOAL_ASSIGN_OR_RETURN(auto opened, formats::TokenFile::Open(token_file));
  const std::shared_ptr<const formats::TokenFile> file = std::move(opened);
  const plan::Dataset dataset = {file->samples(), {file->source_samples(), job.data.weights()}};
  return [file, dataset, count = job.train.minibatch_samples, seed = job.data.seed,
          shuffle =
              job.data.shuffle](int64_t step) -> absl::StatusOr<std::vector<plan::SampleLength>> {
    std::vector<plan::SampleLength> samples;
    for (const int64_t sample : plan::MinibatchSamples(step, count, dataset, seed, shuffle)) {
      samples.push_back({.sample = sample,
                         .tokens = file->tokens(sample),
                         .targets = file->targets(sample),
                         .first_tokens = file->chosen(sample).tokens});
    }
    return samples;
  };
}

absl::StatusOr<sim::Minibatches> DataMinibatches(plan::Job& job) {
  SHOAL_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create());
  plan::Job trained_on = job;
  trained_on.data.validation.path.clear();
  SHOAL_ASSIGN_OR_RETURN(const TrainingData data,
                         PrepareTrainingData(trained_on, folder->path(), {}));
  if (trained_on.train.epochs > 0) {
    SHOAL_RETURN_IF_ERROR(plan::SettleEpochs(trained_on.train, data.train.summary.samples));
  }
  plan::SettleReference(trained_on, data.train.summary.samples);
  job.preference.reference = trained_on.preference.reference;
  return TokenFileMinibatches(job, data.train.path);  // its map outlives the folder
}

absl::StatusOr<Simulation> OpenSimulation(const SimulationSource& source) {
  if (!source.data.empty() && !source.lengths.empty()) {
    return InvalidArgument(
        "--data and --lengths exclude each other: lengths come from one of them");
  }
  Simulation simulation;
  plan::Job& job = simulation.options.job;
  SHOAL_ASSIGN_OR_RETURN(job, ReadJob(source.job_file, source.overrides, {.cpu_has_bf16 = true}));
  if (!source.data.empty()) {
    std::error_code error;
    job.data.train = std::filesystem::absolute(source.data, error).string();
    job.data.mixture.clear();
    job.data.validation = {};  // of the job's own
  }
  SHOAL_RETURN_IF_ERROR(
      AtKey(OpenModel(source, simulation), "model", source.job_file, source.overrides));
  SHOAL_RETURN_IF_ERROR(OpenCluster(source, simulation));
  SettlePolicy(!source.cluster.empty(), simulation);
  if (source.lengths.empty()) {
    const absl::Status data = CheckData(job.data.paths(), job.train.objective);
    SHOAL_RETURN_IF_ERROR(
        source.data.empty() ? AtKey(data, KeyOfTrainingData(job), source.job_file, source.overrides)
                            : Annotate(data, "--data"));
  }
  SHOAL_RETURN_IF_ERROR(OpenLengths(source, simulation));
  simulation.title += fmt::format(
      " on {} devices{}, {} samples a step of {}", simulation.devices(),
      source.cluster.empty() ? "" : " of " + source.cluster, job.train.minibatch_samples,
      source.lengths.empty() ? NamesOf(job.data.paths()) : source.lengths);
  return simulation;
}

void AddSimulationOptions(CLI::App& command, SimulationSource& source) {
  command.add_option("--cluster", source.cluster,
                     "Cluster file (docs/on-demand.md); without, the job's workers");
  command.add_option("--data", source.data, "Samples, or a token file, in place of the job's");
  command.add_option(
      "--lengths", source.lengths,
      fmt::format("Draw lengths, in place of data: {}", fmt::join(plan::LengthForms(), "; ")));
  command.add_option("--shape", source.shape, "A named shape, in place of the job's model");
}

Verdict MakeVerdict(const std::vector<sim::ChoiceSummary>& summaries) {
  const auto baseline = std::find_if(
      summaries.begin(), summaries.end(),
      [](const sim::ChoiceSummary& summary) { return summary.choice == sim::kBaseline; });
  SHOAL_CHECK(baseline != summaries.end());
  const sim::ChoiceSummary* best = nullptr;
  for (const sim::ChoiceSummary& summary : summaries) {
    if (summary.choice.synchronization == Synchronization::kStep &&
        (best == nullptr || summary.mean_seconds < best->mean_seconds)) {
      best = &summary;
    }
  }
  SHOAL_CHECK(best != nullptr);
  Verdict verdict{.baseline = *baseline, .best = *best};
  verdict.speed_up = sim::SpeedUp(*best, *baseline);
  const std::string_view finding = verdict.speed_up > 1 + kWorthSaying   ? "helps here"
                                   : verdict.speed_up < 1 - kWorthSaying ? "loses here"
                                                                         : "changes nothing here";
  verdict.answer = fmt::format(
      "On demand {}: {:.2f} x as fast as balanced collectives (simulated; {} against {}), idle "
      "{:.0f}% against {:.0f}%",
      finding, verdict.speed_up, Name(best->choice.assignment), Name(baseline->choice.assignment),
      100 * best->idle_share, 100 * baseline->idle_share);
  return verdict;
}

absl::StatusOr<Verdict> AskWhetherOnDemandHelps(const Simulation& simulation, int64_t steps) {
  const sim::Simulator simulator(simulation.options);
  std::vector<sim::ChoiceSummary> summaries;
  for (const sim::Choice& choice :
       {sim::kBaseline, sim::Choice{Synchronization::kStep, Assignment::kLbMini},
        sim::Choice{Synchronization::kStep, Assignment::kSpeedWeighted},
        sim::Choice{Synchronization::kStep, Assignment::kDynamic}}) {
    SHOAL_ASSIGN_OR_RETURN(summaries.emplace_back(),
                           sim::Summarize(simulator, choice, simulation.minibatches, steps));
  }
  return MakeVerdict(summaries);
}

void PrintTitle(const Simulation& simulation, int64_t steps, Streams& streams) {
  streams.out << simulation.title << fmt::format(", mean of {} steps\n", steps);
  for (const std::string& note : simulation.notes) {
    streams.out << Paint(streams.out_terminal, Colour::kDim, "note: " + note) << "\n";
  }
}

void PrintVerdict(const Verdict& verdict, Streams& streams) {
  const Colour colour = verdict.speed_up > 1 + kWorthSaying   ? Colour::kGreen
                        : verdict.speed_up < 1 - kWorthSaying ? Colour::kRed
                                                              : Colour::kYellow;
  streams.out << Paint(streams.out_terminal, colour, verdict.answer) << "\n";
}

nlohmann::json VerdictJson(const Verdict& verdict) {
  return {{"event", "verdict"},
          {"kind", "simulated"},
          {"assignment", Name(verdict.best.choice.assignment)},
          {"speed_up", verdict.speed_up},
          {"idle_share", verdict.best.idle_share},
          {"baseline_idle_share", verdict.baseline.idle_share},
          {"answer", verdict.answer}};
}

}  // namespace shoal::cli
