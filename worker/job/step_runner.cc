// Runs plain steps: one microbatch after the other, over all of the model's units.
#include "worker/job/step_runner.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/plan/schedule/stage_units.h"
#include "worker/job/microbatch_drawer.h"
#include "worker/model/batch/batch_size.h"
#include "worker/model/microbatch_model.h"
#include "worker/paced/emulated_model.h"

namespace shoal::worker {
namespace {

// The uses of a microbatch, behind those of what its pairs are compared with where that is made of
// the model without adapters.
std::vector<int> WithReference(const JobContext& context, const std::vector<int>& uses) {
  std::vector<int> all;
  if (context.job.preference.reference == plan::Reference::kAdapterOff) {
    const plan::ModelSpec alone = plan::WithoutAdapters(context.spec);
    all = plan::EvaluationUses(alone, plan::AllUnits(alone));
  }
  all.insert(all.end(), uses.begin(), uses.end());
  return all;
}

class PlainRunner final : public StepRunner {
 public:
  PlainRunner(const JobContext& context, std::unique_ptr<MicrobatchModel> model, Device* device,
              Stream* compute)
      : context_(context),
        model_(std::move(model)),
        device_(device),
        compute_(compute),
        use_order_(WithReference(context, plan::UseOrder(context.spec))) {
    if (context.job.plan.assignment == plan::Assignment::kDynamic) {
      drawer_ = std::make_unique<MicrobatchDrawer>(context.options.draw,
                                                   context.options.incarnation, *context.clock);
    }
  }

  std::vector<int> Contributions() const override {
    const plan::UnitRange all = plan::AllUnits(context_.spec);
    return plan::StageContributions(context_.spec, {&all, 1});
  }
  Device* device() const override { return device_; }
  Stream* compute() const override { return compute_; }

  absl::Status Run(const proto::StepWork& work, double loss_scale, StepWeights& source,
                   StepGradients& sink, proto::FinishedReport& report) override;
  void OnUnitDone(int unit) override;
  void Drain() override {
    draining_ = context_.job.train.synchronization != plan::Synchronization::kLayer;
  }

 private:
  // Shared by the microbatches of a step.
  struct Step {
    const proto::StepWork& work;
    double loss_scale = 0;
    StepWeights& source;
    StepGradients& sink;
    proto::FinishedReport& report;
  };
  absl::Status Validate(const proto::StepWork& work, const Step& step);
  absl::Status RunGiven(const proto::StepWork& work, const Step& step);
  absl::Status RunDrawn(const Step& step);
  absl::Status RunOne(const proto::MicrobatchWork& work, const Step& step);
  void AskForNext(absl::Duration ahead);

  const JobContext& context_;
  const std::unique_ptr<MicrobatchModel> model_;
  Device* const device_;
  Stream* const compute_;
  const std::vector<int> use_order_;          // per microbatch
  std::unique_ptr<MicrobatchDrawer> drawer_;  // if microbatches are drawn
  const Step* drawing_ = nullptr;             // the current step, where the next is to be drawn
  int told_ = 0;                              // packs of its report that the coordinator knows of
  absl::Time microbatch_started_;
  std::atomic<bool> draining_ = false;
};

absl::Status PlainRunner::Run(const proto::StepWork& work, double loss_scale, StepWeights& source,
                              StepGradients& sink, proto::FinishedReport& report) {
  const Step step{work, loss_scale, source, sink, report};
  drawing_ = nullptr;
  told_ = 0;
  if (work.validates()) {
    return Validate(work, step);
  }
  std::vector<int> uses;
  for (int i = 0; i < work.microbatches_size(); ++i) {
    uses.insert(uses.end(), use_order_.begin(), use_order_.end());
  }
  source.BeginStep(uses);
  sink.BeginStep(
      {.microbatches = work.draw() ? std::nullopt : std::optional(work.microbatches_size()),
       .packs = work.packs(),
       .slot = work.slot()});
  if (work.draw()) {
    drawer_->BeginStep(work);
  }
  SHOAL_RETURN_IF_ERROR(RunGiven(work, step));
  return work.draw() ? RunDrawn(step) : absl::OkStatus();
}

// Forward and loss of each, which is reported as of any pack.
absl::Status PlainRunner::Validate(const proto::StepWork& work, const Step& step) {
  const std::vector<int> each =
      WithReference(context_, plan::EvaluationUses(context_.spec, plan::AllUnits(context_.spec)));
  std::vector<int> uses;
  for (int i = 0; i < work.microbatches_size(); ++i) {
    uses.insert(uses.end(), each.begin(), each.end());
  }
  step.source.BeginStep(uses);
  step.sink.BeginStep({.microbatches = 0, .packs = work.packs(), .slot = work.slot()});
  for (int i = 0; i < work.microbatches_size() && !(draining_ && i > 0); ++i) {
    const proto::MicrobatchWork& pack = work.microbatches(i);
    context_.time_kinds->AtMicrobatch(i);
    context_.time_kinds->AtUnit(-1);
    context_.time_kinds->Enter(TimeKind::kData);
    SHOAL_ASSIGN_OR_RETURN(const PackedBatch batch, BuildBatch(context_, work, pack));
    context_.time_kinds->Enter(TimeKind::kForward);
    SHOAL_ASSIGN_OR_RETURN(const MicrobatchResult result, model_->Evaluate(batch, step.source));
    context_.time_kinds->Enter(TimeKind::kData);
    ReportPack(pack.number(), {}, result, 0, step.report);
  }
  return absl::OkStatus();
}

absl::Status PlainRunner::RunGiven(const proto::StepWork& work, const Step& step) {
  for (int i = 0; i < work.microbatches_size(); ++i) {
    const bool last = i + 1 == work.microbatches_size();
    drawing_ = last && work.draw() ? &step : nullptr;
    SHOAL_RETURN_IF_ERROR(RunOne(work.microbatches(i), step));
    if (draining_ && !last) {
      return step.sink.PushRest();
    }
  }
  return absl::OkStatus();
}

absl::Status PlainRunner::RunDrawn(const Step& step) {
  drawing_ = &step;
  while (true) {
    if (draining_) {
      drawing_ = nullptr;
      return step.sink.PushRest();
    }
    AskForNext(absl::ZeroDuration());
    SHOAL_ASSIGN_OR_RETURN(const std::optional<proto::MicrobatchWork> drawn, drawer_->Take());
    if (!drawn.has_value()) {
      drawing_ = nullptr;
      return step.sink.PushRest();
    }
    step.source.AddUses(use_order_);
    SHOAL_RETURN_IF_ERROR(RunOne(*drawn, step));
  }
}

absl::Status PlainRunner::RunOne(const proto::MicrobatchWork& work, const Step& step) {
  context_.time_kinds->AtMicrobatch(step.report.packs_size());
  context_.time_kinds->AtUnit(-1);
  context_.time_kinds->Enter(TimeKind::kData);
  SHOAL_ASSIGN_OR_RETURN(const PackedBatch batch, BuildBatch(context_, step.work, work));
  context_.time_kinds->Enter(TimeKind::kForward);
  step.sink.AtPack(work.number());
  microbatch_started_ = context_.clock->Now();
  const double before = context_.time_kinds->seconds(TimeKind::kForward) +
                        context_.time_kinds->seconds(TimeKind::kBackward);
  SHOAL_ASSIGN_OR_RETURN(const MicrobatchResult result,
                         model_->Run(batch, step.loss_scale, step.source, step.sink));
  context_.time_kinds->Enter(TimeKind::kData);
  ReportPack(work.number(), SizeOfBatch(batch), result,
             context_.time_kinds->seconds(TimeKind::kForward) +
                 context_.time_kinds->seconds(TimeKind::kBackward) - before,
             step.report);
  context_.metrics->OnMicrobatch(result.tokens, result.targets);
  return absl::OkStatus();
}

// Draws the next microbatch as late as possible, to leave it to others, but in time not to wait.
void PlainRunner::OnUnitDone(int unit) {
  if (drawing_ == nullptr) {
    return;
  }
  const auto blocks = static_cast<double>(context_.spec.layers);
  // A backward pass takes two thirds of the time, and ends with unit 1 (and the embedding's, which
  // is short).
  const double left = std::min(blocks, std::max(0.0, unit - 1.0)) / blocks * 2 / 3;
  const absl::Duration remaining =
      (context_.clock->Now() - microbatch_started_) * (left / (1 - left));
  if (unit <= 1 || remaining <= drawer_->lead()) {
    AskForNext(remaining);
  }
}

void PlainRunner::AskForNext(absl::Duration ahead) {
  if (!drawer_->MayAsk()) {
    return;
  }
  const auto& packs = drawing_->report.packs();
  const int first = told_;
  while (told_ < packs.size() && drawing_->sink.Acknowledged(packs[told_].number())) {
    ++told_;
  }
  const std::vector<proto::PackResult> done(packs.begin() + first, packs.begin() + told_);
  drawer_->Ask(ahead, done);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> MakePlainRunner(const JobContext& context,
                                                            OpenedDevice opened) {
  if (context.job.emulate.enabled()) {
    LogWarning("{}: emulated device of shape {}; nothing is computed", context.options.name,
               context.job.emulate.shape);
    return std::make_unique<PlainRunner>(
        context,
        MakeEmulatedModel(context.spec, context.job.emulate, context.options.index, *context.clock),
        nullptr, nullptr);
  }
  const bool copies = opened.compute_device.device->asynchronous();
  SHOAL_ASSIGN_OR_RETURN(auto transformer,
                         Transformer::Create(context.spec, plan::ComputeDType(context.job),
                                             std::move(opened.compute_device)));
  transformer->rotary().ChooseFor(context.job.data.max_sequence_tokens);
  Device* const device = copies ? &transformer->device() : nullptr;
  Stream* const compute = copies ? &transformer->ops().stream() : nullptr;
  return std::make_unique<PlainRunner>(context, MakeTransformerModel(std::move(transformer)),
                                       device, compute);
}

absl::StatusOr<PackedBatch> BuildBatch(const JobContext& context, const proto::StepWork& work,
                                       const proto::MicrobatchWork& pack) {
  const bool of_validation = work.validates() && !work.of_training();
  const formats::TokenFile& file = of_validation ? *context.validation : *context.data;
  PackedBatch batch;
  if (!work.validates() && context.job.lora.dropout > 0) {
    batch.dropout = {.probability = context.job.lora.dropout,
                     .seed = context.job.train.seed,
                     .step = work.step(),
                     .samples = {}};
  }
  for (const int64_t sample : pack.samples()) {
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample encoded, file.Sample(sample));
    batch.Append(encoded);
    if (batch.dropout.has_value()) {
      batch.dropout->samples.resize(static_cast<size_t>(batch.sequences()), sample);
    }
  }
  if (context.job.train.objective == plan::Objective::kDpo) {
    batch.preference = context.job.preference;
    batch.references.assign(pack.references().begin(), pack.references().end());
  }
  return batch;
}

void ReportPack(int64_t number, const plan::MicrobatchSize& size, const MicrobatchResult& result,
                double seconds, proto::FinishedReport& report) {
  if (size.tokens > 0) {
    proto::MicrobatchTime& time = *report.add_times();
    time.set_tokens(size.tokens);
    time.set_squared_tokens(size.squared_tokens);
    time.set_seconds(seconds);
  }
  proto::PackResult& pack = *report.add_packs();
  pack.set_number(number);
  pack.set_loss_sum(result.loss_sum);
  pack.set_tokens(result.tokens);
  pack.set_targets(result.targets);
  pack.mutable_log_probabilities()->Assign(result.log_probabilities.begin(),
                                           result.log_probabilities.end());
  pack.mutable_references()->Assign(result.references.begin(), result.references.end());
}

}  // namespace shoal::worker
