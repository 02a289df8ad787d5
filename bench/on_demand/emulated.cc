#include "bench/on_demand/emulated.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "bench/on_demand/simulated.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/token_file.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/model_spec.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;

constexpr double kDeviceFlops = 1.4e14;
constexpr int64_t kPrefetchUnits = 1;
constexpr int64_t kStandInVocabulary = 64;

// What all methods of a config share. The stand-in is the small model whose weights travel.
struct Stage {
  const Config& config;
  const EmulatedOptions& options;
  Steps steps;
  plan::ModelSpec stand_in;
  std::string model;
  std::string tokens;
  double time_scale = 1;
};

// Few blocks, fewer with many microbatches: the machine that emulates many devices spends its time
// on messages. Where all meet at layers, a worker that has fetched ahead is one block ahead of the
// others: about as much of a microbatch as a few of the shape's blocks.
int64_t LayersFor(int64_t samples_per_device) { return samples_per_device > 8 ? 4 : 7; }

// Returns config.json of the stand-in for `shape`: a few tiny blocks.
std::string StandInConfig(const plan::ModelSpec& shape, int64_t samples_per_device) {
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  spec.vocabulary = kStandInVocabulary;
  spec.hidden = 16;
  spec.layers = LayersFor(samples_per_device);
  spec.tied_embeddings = shape.tied_embeddings;
  spec.kinds = {
      {.attention = {.heads = 2, .kv_heads = 1, .head_dim = 8}, .mlp = {.intermediate = 32}}};
  return formats::ModelSpecToJson(spec, DType::kF32, {});
}

sim::SimulatorOptions FreeCommunication(const Stage& stage) {
  plan::ClusterSpec cluster;
  cluster.devices = {{.flops = kDeviceFlops}};
  sim::SimulatorOptions options = OptionsFor(stage.config, cluster);
  options.shape = options.spec;
  options.spec = stage.stand_in;
  options.job.train.prefetch_units = kPrefetchUnits;
  return options;
}

absl::Status WriteTokens(const Steps& steps, const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const auto writer, formats::TokenFileWriter::Create(
                                                path, kStandInVocabulary, /*tokenizer_hash=*/0));
  for (const auto& step : steps) {
    for (const plan::SampleLength& sample : step) {
      const auto count = static_cast<size_t>(sample.tokens);
      const std::vector<int32_t> tokens(count, 1);
      std::vector<int32_t> labels(count, 1);
      labels.back() = formats::kIgnoredLabel;
      SHOAL_RETURN_IF_ERROR(writer->Add(tokens, labels));
    }
  }
  return writer->Finish();
}

// Returns how much longer a step must last than the golden config's for this machine's work: as
// many barriers of all processes as the fullest device's microbatches have stand-in blocks.
double Stretch(const Stage& stage) {
  const double devices = static_cast<double>(stage.config.devices) / 8;
  const double uses =
      static_cast<double>(stage.config.samples_per_device * stage.stand_in.layers) / (4 * 7);
  return std::max(1.0, devices) * std::max(1.0, uses);
}

absl::Status SetTimeScale(Stage& stage) {
  const sim::Simulator simulator(FreeCommunication(stage));
  SHOAL_ASSIGN_OR_RETURN(const sim::ChoiceSummary lb_mini,
                         sim::Summarize(simulator, kLbMini, FromSteps(stage.steps),
                                        static_cast<int64_t>(stage.steps.size())));
  stage.time_scale = stage.options.step_seconds * Stretch(stage) / lb_mini.mean_seconds;
  return absl::OkStatus();
}

absl::StatusOr<Stage> Prepare(const Config& config, const EmulatedOptions& options,
                              const TrainRunner& runner) {
  Stage stage{.config = config, .options = options};
  SHOAL_ASSIGN_OR_RETURN(stage.steps, DrawSteps(config, options.warmup_steps + options.steps));
  const auto shape = plan::NamedShape(config.shape);
  SHOAL_CHECK(shape.has_value());
  stage.tokens = runner.folder() + "/steps.tokens";
  SHOAL_RETURN_IF_ERROR(WriteTokens(stage.steps, stage.tokens));
  stage.model = runner.folder() + "/model";
  const std::string config_json = runner.folder() + "/config.json";
  std::error_code ignored;
  fs::remove_all(stage.model, ignored);
  SHOAL_RETURN_IF_ERROR(
      WriteFileAtomically(config_json, StandInConfig(*shape, config.samples_per_device)));
  SHOAL_RETURN_IF_ERROR(runner
                            .Run({"model", "init", "--shape", config_json, "--output", stage.model},
                                 absl::Seconds(30))
                            .status());
  SHOAL_ASSIGN_OR_RETURN(stage.stand_in, formats::ReadModelSpec(stage.model));
  SHOAL_RETURN_IF_ERROR(SetTimeScale(stage));
  return stage;
}

// All methods fetch weights for each use and push gradients for each microbatch.
plan::Job JobOf(const Stage& stage, const sim::Choice& choice) {
  const Config& config = stage.config;
  plan::Job job;
  job.model = stage.model;
  job.data.train = stage.tokens;
  job.data.max_sequence_tokens = config.longest;
  job.data.microbatch_tokens = config.microbatch_tokens();
  job.data.shuffle = false;
  job.plan.assignment = choice.assignment;
  job.train.steps = static_cast<int64_t>(stage.steps.size());
  job.train.minibatch_samples = config.minibatch_samples();
  job.train.compute = plan::ComputeType::kFp32;
  job.train.synchronization = choice.synchronization;
  job.train.residency = plan::Residency::kLayer;
  job.train.push = plan::PushPolicy::kMicrobatch;
  job.train.prefetch_units = kPrefetchUnits;
  job.cluster.servers = 2;
  job.cluster.workers = config.devices;
  job.cluster.lease_seconds = 30;
  job.emulate.shape = config.shape;
  job.emulate.device_flops = kDeviceFlops;
  job.emulate.time_scale = stage.time_scale;
  if (!config.speeds.empty()) {
    job.emulate.speeds = config.speeds;
  }
  return job;
}

double IdealSeconds(const Stage& stage, const plan::ModelSpec& shape) {
  const plan::CostModel cost = plan::FlopCost(shape).Scaled(1 / kDeviceFlops);
  double work = 0;
  for (size_t i = static_cast<size_t>(stage.options.warmup_steps); i < stage.steps.size(); ++i) {
    for (const plan::SampleLength& sample : stage.steps[i]) {
      work += cost.Sequence(sample.tokens);
    }
  }
  const std::vector<double>& speeds = stage.config.speeds;
  const double speed = speeds.empty() ? static_cast<double>(stage.config.devices)
                                      : std::accumulate(speeds.begin(), speeds.end(), 0.0);
  return work / speed / static_cast<double>(stage.options.steps);
}

absl::StatusOr<EmulatedMethod> RunMethod(const Stage& stage, const sim::Simulator& simulator,
                                         const Method& method, const TrainRunner& runner) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<MeasuredStep> steps,
                         runner.Train(JobOf(stage, method.choice), absl::Minutes(5)));
  EmulatedMethod result{.method = method};
  double time = 0;
  double simulated_time = 0;
  for (size_t i = static_cast<size_t>(stage.options.warmup_steps); i < steps.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(
        const sim::StepResult simulated,
        simulator.Run(stage.steps[i], method.choice.assignment, method.choice.synchronization));
    result.measured.push_back(steps[i].seconds / stage.time_scale);
    result.simulated.push_back(simulated.seconds);
    time += steps[i].seconds;
    simulated_time += simulated.seconds;
    result.idle_share += steps[i].idle_share * steps[i].seconds;
    result.predicted_idle_share += steps[i].predicted_idle_share * steps[i].seconds;
    result.simulated_idle_share += simulated.idle_share * simulated.seconds;
  }
  result.idle_share /= time;
  result.predicted_idle_share /= time;
  result.simulated_idle_share /= simulated_time;
  return result;
}

}  // namespace

double Mean(const std::vector<double>& values) {
  SHOAL_CHECK(!values.empty());
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double EmulatedMethod::mean_measured() const { return Mean(measured); }
double EmulatedMethod::mean_simulated() const { return Mean(simulated); }

double EmulatedMethod::difference() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < measured.size(); ++i) {
    ratios.push_back(measured[i] / simulated[i]);
  }
  return Median(ratios) - 1;
}

const EmulatedMethod* EmulatedConfig::Of(const sim::Choice& choice) const {
  const auto found = std::ranges::find_if(
      methods, [&](const EmulatedMethod& run) { return run.method.choice == choice; });
  return found == methods.end() ? nullptr : &*found;
}

double EmulatedConfig::SpeedUp(const sim::Choice& choice) const {
  const EmulatedMethod* const method = Of(choice);
  const EmulatedMethod* const baseline = Of(sim::kBaseline);
  return method == nullptr || baseline == nullptr
             ? std::nan("")
             : baseline->mean_measured() / method->mean_measured();
}

absl::StatusOr<EmulatedConfig> Emulate(const Config& config, const std::vector<Method>& methods,
                                       const EmulatedOptions& options, const TrainRunner& runner) {
  SHOAL_ASSIGN_OR_RETURN(const Stage stage, Prepare(config, options, runner));
  const sim::Simulator simulator(FreeCommunication(stage));
  EmulatedConfig result{.config = config,
                        .ideal_seconds = IdealSeconds(stage, *simulator.options().shape)};
  for (const Method& method : methods) {
    auto run = RunMethod(stage, simulator, method, runner);
    if (!run.ok()) {
      return Annotate(run.status(), fmt::format("{}: {}", config.Name(), method.Name()));
    }
    result.methods.push_back(*std::move(run));
  }
  std::error_code ignored;
  fs::remove(stage.tokens, ignored);
  return result;
}

}  // namespace shoal::bench
