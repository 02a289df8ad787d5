// Activation offload by the pipeline's runtime on one device: what it costs beside the same
// schedule without, its k as predicted and as measured, and how long sequences get with and
// without.
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/time/clock.h"
#include "bench/gpu/batches.h"
#include "bench/gpu/parts.h"
#include "bench/gpu/resident_units.h"
#include "common/phase_clock.h"
#include "common/status.h"
#include "fmt/format.h"
#include "plan/activation_bytes.h"
#include "plan/offload_ratio.h"
#include "plan/pipeline/chosen_schedule.h"
#include "worker/model/batch_size.h"
#include "worker/model/transformer_stage.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/probe/probe.h"

namespace shoal::bench {
namespace {

constexpr plan::Recompute kRecompute = plan::Recompute::kLight;
constexpr double kMostK = 0.8;        // up to which a full offload is to cost
constexpr double kMostCost = 0.02;    // no more than this
constexpr double kPrediction = 0.10;  // of the measured k
constexpr int kSteps = 3;
// For the device to come to the end of a step: the longest sequences take most of a minute.
constexpr absl::Duration kStepTimeout = absl::Minutes(10);
// Of a first case and a first attempt, when there is nothing yet to judge by, and how much longer
// than that reckoned from an earlier one they may take.
constexpr absl::Duration kExpected = absl::Seconds(20);
constexpr double kMargin = 1.3;
// The head of a few layers would outweigh them.
constexpr int64_t kMostVocabulary = 8192;

std::vector<plan::MicrobatchSize> SizesOf(const std::vector<worker::PackedBatch>& batches) {
  std::vector<plan::MicrobatchSize> sizes;
  for (const worker::PackedBatch& batch : batches) {
    sizes.push_back(worker::SizeOfBatch(batch));
  }
  return sizes;
}

// Pinned memory of the host in one piece, for one user at a time. It is taken once for all models:
// to pin tens of gigabytes takes as long as all of their steps.
class HostPiece final : public worker::Memory {
 public:
  static absl::StatusOr<std::unique_ptr<HostPiece>> Make(PartRun& run) {
    std::unique_ptr<HostPiece> piece(new HostPiece());
    SHOAL_ASSIGN_OR_RETURN(piece->machine_, run.options().make_machine(0));
    piece->memory_ = piece->machine_.device->NewHostMemory(0);
    // What is pinned is missing to all else.
    const int64_t machine = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
    SHOAL_ASSIGN_OR_RETURN(piece->buffer_, piece->memory_->Allocate(std::min(
                                               run.sizes().offload_host_bytes, machine / 2)));
    return piece;
  }

  std::string_view name() const override { return memory_->name(); }
  absl::StatusOr<worker::Buffer> Allocate(int64_t bytes) override {
    if (taken_ > 0 || bytes > buffer_.bytes()) {
      return ResourceExhausted("pinned memory: {} B asked for, {} of {} B in use", bytes, taken_,
                               buffer_.bytes());
    }
    taken_ = bytes;
    return worker::Buffer(this, buffer_.data(), bytes);
  }
  int64_t budget_bytes() const override { return buffer_.bytes(); }
  int64_t allocated_bytes() const override { return taken_; }
  int64_t peak_bytes() const override { return buffer_.bytes(); }

 private:
  HostPiece() = default;
  void Free(std::byte*, int64_t) override { taken_ = 0; }

  worker::Machine machine_;
  std::unique_ptr<worker::Memory> memory_;
  worker::Buffer buffer_;
  int64_t taken_ = 0;
};

// One stage that has all of a model, with weights and gradients resident.
class WholeModel {
 public:
  static absl::StatusOr<std::unique_ptr<WholeModel>> Make(PartRun& run, const plan::ModelSpec& spec,
                                                          int chunks, worker::Memory& host) {
    std::unique_ptr<WholeModel> whole(new WholeModel(spec));
    SHOAL_ASSIGN_OR_RETURN(
        whole->choice_.split,
        plan::SplitLayers(std::vector<double>(static_cast<size_t>(spec.layers) + 2, 1.0), 1, chunks,
                          plan::PlacementOf(whole->choice_.schedule)));
    whole->choice_.chunks = chunks;
    SHOAL_ASSIGN_OR_RETURN(worker::Machine machine, run.options().make_machine(0));
    SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<worker::Transformer> model,
                           worker::Transformer::Create(spec, DType::kBF16, std::move(machine)));
    whole->model_ = model.get();
    whole->stage_ = std::make_unique<worker::TransformerStage>(std::move(model),
                                                               whole->choice_.split, kRecompute);
    SHOAL_ASSIGN_OR_RETURN(whole->weights_, ResidentWeights::Create(*whole->model_));
    SHOAL_ASSIGN_OR_RETURN(whole->gradients_, ResidentGradients::Create(*whole->model_));
    SHOAL_RETURN_IF_ERROR(whole->weights_->SetRandom(run.options().seed));
    whole->runner_ = std::make_unique<worker::StageRunner>(
        worker::StageRunnerOptions{.model = whole->stage_.get(),
                                   .device = &whole->model_->device(),
                                   .compute = &whole->model_->ops().stream(),
                                   .host = &host,
                                   .phases = &whole->phases_,
                                   .wait_timeout = kStepTimeout});
    return whole;
  }

  struct Step {
    double seconds = 0;
    worker::StageReport report;
  };
  // Of the schedule that was made last.
  absl::StatusOr<Step> Run(const std::vector<worker::PackedBatch>& batches) {
    const absl::Time begin = absl::Now();
    Step step;
    SHOAL_ASSIGN_OR_RETURN(
        step.report,
        runner_->RunStep({.step = ++steps_,
                          .schedule = &schedule_,
                          .microbatches = batches,
                          .loss_scale = 1.0 / static_cast<double>(batches[0].target_count()),
                          .source = weights_.get(),
                          .sink = gradients_.get(),
                          .record_spans = true}));
    SHOAL_RETURN_IF_ERROR(model_->ops().Finish());
    step.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    for (const worker::MicrobatchResult& result : step.report.microbatches) {
      if (!std::isfinite(result.loss_sum)) {
        return Internal("the loss of random weights is {}", result.loss_sum);
      }
    }
    return step;
  }

  // Of a step that has just run: seconds of all copies, were everything offloaded at the rate at
  // which some of it was.
  double CopySeconds(const worker::StageReport& report) const {
    double seconds = 0, moved = 0, all = 0;
    for (const worker::StageSpan& span : report.spans) {
      if (span.kind == worker::StageSpan::Kind::kOffload ||
          span.kind == worker::StageSpan::Kind::kReload) {
        seconds += absl::ToDoubleSeconds(span.length);
      }
      if (span.kind == worker::StageSpan::Kind::kOffload) {
        moved += BytesOf(span.action.chunk, span.action.microbatch);
      }
    }
    for (int chunk = 0; chunk < choice_.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < schedule_.shape.microbatches; ++microbatch) {
        all += BytesOf(chunk, microbatch);
      }
    }
    return moved > 0 ? seconds * all / moved : 0;
  }

  // The planner's k for the schedule that was made last.
  double PredictedRatio(const std::vector<worker::PackedBatch>& batches,
                        const plan::PipelinePace& pace) const {
    return plan::OffloadRatio(
        schedule_.shape,
        plan::PipelineCosts({.spec = spec_, .compute = DType::kBF16, .recompute = kRecompute},
                            schedule_.shape, choice_.split, SizesOf(batches), pace));
  }

  // Of as many of the first chunks as `host_bytes` take.
  absl::Status MakeSchedule(const std::vector<worker::PackedBatch>& batches, int64_t host_bytes,
                            const plan::PipelinePace& pace) {
    choice_.offloaded_chunks = Offloaded(batches, host_bytes);
    SHOAL_ASSIGN_OR_RETURN(
        schedule_, plan::BuildChosenSchedule(spec_, DType::kBF16, choice_, SizesOf(batches), pace));
    return absl::OkStatus();
  }

 private:
  explicit WholeModel(const plan::ModelSpec& spec) : spec_(spec), phases_(RealClock()) {
    choice_.schedule = {.kind = plan::ScheduleKind::kAccumulation};
    choice_.recompute = kRecompute;
  }
  int Offloaded(const std::vector<worker::PackedBatch>& batches, int64_t host_bytes) const {
    int chunks = 0;
    for (; chunks < choice_.chunks; ++chunks) {
      for (const plan::MicrobatchSize& size : SizesOf(batches)) {
        host_bytes -=
            plan::PlanChunkBytes(spec_, DType::kBF16, choice_.split[static_cast<size_t>(chunks)],
                                 kRecompute, size.tokens)
                .activations;
      }
      if (host_bytes < 0) {
        break;
      }
    }
    return chunks;
  }
  double BytesOf(int chunk, int microbatch) const {
    return static_cast<double>(stage_->BytesOf(chunk, microbatch).activations);
  }

  const plan::ModelSpec spec_;
  plan::PipelineChoice choice_;
  plan::Schedule schedule_;
  PhaseClock phases_;
  worker::Transformer* model_ = nullptr;
  std::unique_ptr<worker::TransformerStage> stage_;
  std::unique_ptr<ResidentWeights> weights_;
  std::unique_ptr<ResidentGradients> gradients_;
  std::unique_ptr<worker::StageRunner> runner_;
  int64_t steps_ = 0;
};

// Lets everything be offloaded, however long the compute then waits.
plan::PipelinePace PaceOfAnyOffload() {
  return {.forward_flops = 1e12,
          .backward_input_flops = 1e12,
          .backward_weights_flops = 1e12,
          .offload_bytes_per_second = 1e15,
          .reload_bytes_per_second = 1e15};
}

absl::StatusOr<WholeModel::Step> MedianStep(WholeModel& model,
                                            const std::vector<worker::PackedBatch>& batches) {
  std::vector<WholeModel::Step> steps;
  for (int i = 0; i <= kSteps; ++i) {
    SHOAL_ASSIGN_OR_RETURN(WholeModel::Step step, model.Run(batches));
    if (i > 0) {
      steps.push_back(std::move(step));
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return std::move(steps[steps.size() / 2]);
}

std::string Gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

absl::Status AddCost(PartRun& run, const plan::ModelSpec& spec, int64_t tokens,
                     worker::Memory& host) {
  SHOAL_ASSIGN_OR_RETURN(worker::Machine machine, run.options().make_machine(0));
  SHOAL_ASSIGN_OR_RETURN(
      const worker::ProbeResult probe,
      worker::Probe(spec, {.compute = DType::kBF16, .tokens = tokens}, std::move(machine)));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<WholeModel> model,
                         WholeModel::Make(run, spec, run.sizes().offload_chunks, host));
  const std::vector<worker::PackedBatch> batches = {
      OneSequence(spec, tokens, run.options().seed),
      OneSequence(spec, tokens, run.options().seed + 1)};
  SHOAL_RETURN_IF_ERROR(model->MakeSchedule(batches, 0, probe.pace));
  SHOAL_ASSIGN_OR_RETURN(const WholeModel::Step without, MedianStep(*model, batches));
  SHOAL_RETURN_IF_ERROR(model->MakeSchedule(batches, host.budget_bytes(), probe.pace));
  SHOAL_ASSIGN_OR_RETURN(const WholeModel::Step with, MedianStep(*model, batches));

  const double predicted = model->PredictedRatio(batches, probe.pace);
  const double measured = model->CopySeconds(with.report) / without.report.compute_seconds;
  const double cost = with.seconds / without.seconds - 1;
  run.report().AddRow(
      {fmt::format("{}", tokens), fmt::format("{:.3f}", predicted), fmt::format("{:.3f}", measured),
       fmt::format("{:.1f}", 1e3 * without.seconds), fmt::format("{:.1f}", 1e3 * with.seconds),
       fmt::format("{:+.1f}%", 100 * cost), Gib(without.report.peak_device_bytes),
       Gib(with.report.peak_device_bytes), Gib(with.report.peak_host_bytes)});
  if (measured > 0) {
    run.report().AddBar({fmt::format("k at {} tokens, predicted and measured", tokens),
                         fmt::format("within {:.0f}%", 100 * kPrediction),
                         fmt::format("{:+.1f}%", 100 * (predicted / measured - 1)),
                         std::abs(predicted / measured - 1) <= kPrediction});
  }
  if (measured > 0 && measured <= kMostK) {
    run.report().AddBar({fmt::format("full offload at {} tokens, k {:.2f}", tokens, measured),
                         fmt::format("at most {:.0f}% longer", 100 * kMostCost),
                         fmt::format("{:+.1f}%", 100 * cost), cost <= kMostCost});
  }
  return absl::OkStatus();
}

// One step of a model that is made for it: what an attempt that fails leaves takes no memory from
// the next one.
absl::StatusOr<WholeModel::Step> TryLength(PartRun& run, const plan::ModelSpec& spec, bool offload,
                                           int64_t tokens, worker::Memory& host) {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<WholeModel> model,
                         WholeModel::Make(run, spec, run.sizes().longest_chunks, host));
  const std::vector<worker::PackedBatch> batches = {OneSequence(spec, tokens, run.options().seed)};
  SHOAL_RETURN_IF_ERROR(
      model->MakeSchedule(batches, offload ? host.budget_bytes() : 0, PaceOfAnyOffload()));
  return model->Run(batches);
}

// The longest sequence that a step runs with, by halving.
absl::Status AddLongest(PartRun& run, const plan::ModelSpec& spec, bool offload,
                        worker::Memory& host) {
  const int64_t step = run.sizes().longest_step;
  std::vector<std::string> row = {offload ? "with offload" : "without", "none", "-", "-", "-"};
  int64_t fits = 0, too_long = run.sizes().longest_tokens / step + 1;
  absl::Duration expected = kExpected;
  while (too_long - fits > 1) {
    const int64_t tried = (fits + too_long) / 2;
    // Attention takes the square.
    const double longer = fits > 0 ? static_cast<double>(tried) / static_cast<double>(fits) : 1;
    if (!run.HasTimeFor(expected * kMargin * longer * longer)) {
      row.front() += ", as far as there was time";
      break;
    }
    const absl::Time begin = absl::Now();
    const absl::StatusOr<WholeModel::Step> ran = TryLength(run, spec, offload, tried * step, host);
    if (ran.ok()) {
      fits = tried;
      expected = absl::Now() - begin;
      row = {row.front(), fmt::format("{}", tried * step), fmt::format("{:.2f}", ran->seconds),
             Gib(ran->report.peak_device_bytes), Gib(ran->report.peak_host_bytes)};
    } else if (absl::IsResourceExhausted(ran.status())) {
      too_long = tried;
    } else {
      return ran.status();
    }
  }
  run.report().AddRow(row);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOffloadPart(PartRun& run) {
  std::optional<plan::ModelSpec> spec = plan::NamedShape(run.sizes().kernel_shape);
  if (!spec) {
    return InvalidArgument("no shape is called {}", run.sizes().kernel_shape);
  }
  plan::ModelSpec layers = *spec;
  layers.layers = std::min<int64_t>(layers.layers, run.sizes().offload_layers);
  layers.vocabulary = std::min(layers.vocabulary, kMostVocabulary);
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<HostPiece> host, HostPiece::Make(run));
  run.report().AddTable(
      "Activation offload",
      fmt::format(
          "Shape {} with {} layers and a vocabulary of {}, two microbatches of one "
          "sequence each, light recompute, "
          "all {} chunks offloaded (as far as {} take them) beside the same schedule without. k: "
          "seconds of copies "
          "out and back, were all copied, over seconds of compute; predicted by the planner "
          "from what the probe measures.",
          run.sizes().kernel_shape, layers.layers, layers.vocabulary, run.sizes().offload_chunks,
          Gib(host->budget_bytes())),
      {"tokens", "k, predicted", "k, measured", "without, ms", "with, ms", "longer by",
       "on the device, without", "with", "on the host"});
  absl::Duration of_token = absl::ZeroDuration();
  for (const int64_t tokens : run.sizes().offload_tokens) {
    if (!run.HasTimeFor(std::max(kExpected, of_token * tokens * kMargin))) {
      run.report().AddRow(
          {fmt::format("{}", tokens), "no time was left", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const absl::Time begin = absl::Now();
    SHOAL_RETURN_IF_ERROR(AddCost(run, layers, tokens, *host));
    of_token = (absl::Now() - begin) / tokens;
  }
  run.report().AddTable(
      "The longest sequence",
      fmt::format(
          "Shape {} whole, one microbatch of one sequence, light recompute, weights in bf16 "
          "and gradients in fp32 resident, no optimizer state; in steps of {} tokens up to "
          "{}, with up to {} for what is offloaded.",
          run.sizes().kernel_shape, run.sizes().longest_step, run.sizes().longest_tokens,
          Gib(host->budget_bytes())),
      {"", "tokens", "seconds", "activations on the device", "on the host"});
  SHOAL_RETURN_IF_ERROR(AddLongest(run, *spec, false, *host));
  return AddLongest(run, *spec, true, *host);
}

}  // namespace shoal::bench
