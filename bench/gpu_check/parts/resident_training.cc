#include "bench/gpu_check/parts/resident_training.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bench/gpu_check/base/batches.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/resident_optimizer.h"
#include "bench/gpu_check/base/resident_units.h"
#include "bench/gpu_check/base/timing.h"
#include "core/base/status.h"
#include "core/plan/memory/attention_scratch.h"
#include "core/plan/memory/loss_chunk.h"
#include "worker/model/runner.h"

namespace shoal::bench {
namespace {

constexpr int kLeastSteps = 2;  // measured
// Kept free of the budget, besides attention's memory: what reservations lose, and rotary tables.
constexpr int64_t kSpareBytes = int64_t{1} << 30;

int64_t Elements(const std::vector<plan::UnitSpec>& units) {
  int64_t elements = 0;
  for (const plan::UnitSpec& unit : units) {
    elements += unit.count;
  }
  return elements;
}

// A model with everything its steps need.
class Trained {
 public:
  static absl::StatusOr<std::unique_ptr<Trained>> Make(PartRun& run, const TrainCase& c) {
    std::unique_ptr<Trained> trained(new Trained());
    SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, c.Spec());
    SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device, run.MakeTrainingDevice());
    auto profiled = std::make_unique<ProfiledOps>(std::move(compute_device.ops));
    trained->ops_ = profiled.get();
    compute_device.ops = std::move(profiled);
    const FlatKernels* const flat = run.options().flat;
    SHOAL_ASSIGN_OR_RETURN(trained->plan_, PlanTraining(c, spec, flat != nullptr,
                                                        compute_device.device->budget_bytes()));
    SHOAL_ASSIGN_OR_RETURN(trained->model_, worker::Transformer::Create(spec, DType::kBF16,
                                                                        std::move(compute_device)));
    SHOAL_ASSIGN_OR_RETURN(trained->weights_, ResidentWeights::Create(*trained->model_));
    SHOAL_ASSIGN_OR_RETURN(trained->gradients_, ResidentGradients::Create(*trained->model_));
    SHOAL_RETURN_IF_ERROR(trained->weights_->SetRandom(run.options().seed));
    if (flat != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(
          trained->optimizer_,
          ResidentOptimizer::Create(*trained->model_, *flat, *trained->weights_,
                                    *trained->gradients_, trained->plan_.shared_state));
    }
    trained->batch_ = RandomSequences(spec, c.tokens, c.sequences, run.options().seed);
    return trained;
  }

  struct Step {
    double microbatch = 0, optimizer = 0, loss = 0;
    double seconds() const { return microbatch + optimizer; }
  };
  // Profiles the operators of one microbatch.
  absl::StatusOr<std::vector<OpProfile>> Profile() {
    ops_->Start();
    const double scale = 1.0 / static_cast<double>(batch_.target_count());
    SHOAL_RETURN_IF_ERROR(
        RunMicrobatch(*model_, batch_, scale, *weights_, *gradients_, plan_.recompute).status());
    return ops_->Stop();
  }
  absl::StatusOr<Step> Run() {
    Step step;
    const absl::Time begin = absl::Now();
    const double scale = 1.0 / static_cast<double>(batch_.target_count());
    SHOAL_ASSIGN_OR_RETURN(
        const worker::MicrobatchResult result,
        RunMicrobatch(*model_, batch_, scale, *weights_, *gradients_, plan_.recompute));
    SHOAL_RETURN_IF_ERROR(model_->ops().Finish());
    const absl::Time computed = absl::Now();
    step.microbatch = absl::ToDoubleSeconds(computed - begin);
    step.loss = result.loss_sum / static_cast<double>(result.targets);
    if (!std::isfinite(step.loss)) {
      return Internal("the loss of random weights is {}", step.loss);
    }
    if (optimizer_ != nullptr) {
      SHOAL_RETURN_IF_ERROR(optimizer_->Step());
      SHOAL_RETURN_IF_ERROR(model_->ops().Finish());
      step.optimizer = absl::ToDoubleSeconds(absl::Now() - computed);
    }
    return step;
  }

  const TrainPlan& plan() const { return plan_; }
  int64_t peak_bytes() const { return model_->device().peak_bytes(); }
  bool has_optimizer() const { return optimizer_ != nullptr; }

 private:
  Trained() = default;

  TrainPlan plan_;
  ProfiledOps* ops_ = nullptr;  // the model's
  std::unique_ptr<worker::Transformer> model_;
  std::unique_ptr<ResidentWeights> weights_;
  std::unique_ptr<ResidentGradients> gradients_;
  std::unique_ptr<ResidentOptimizer> optimizer_;
  worker::PackedBatch batch_;
};

}  // namespace

absl::StatusOr<TrainPlan> PlanTraining(const TrainCase& c, const plan::ModelSpec& spec,
                                       bool optimizer, int64_t budget_bytes) {
  const std::vector<plan::UnitSpec> units = plan::BuildUnits(spec);
  const int64_t resident = Elements(units) * (SizeOf(DType::kBF16) + SizeOf(DType::kF32));
  int64_t wanted = 0;
  for (const auto& [name, recompute] : plan::kRecomputeNames) {
    if (recompute < c.recompute) {
      continue;
    }
    const int64_t microbatch =
        worker::MicrobatchBytes(spec, DType::kBF16, c.tokens, plan::kGpuLossChunk, recompute);
    for (const bool shared : {false, true}) {
      const int64_t state = optimizer ? ResidentOptimizer::Bytes(units, shared) : 0;
      const TrainPlan plan{recompute, optimizer && shared, resident + state + microbatch};
      wanted = wanted == 0 ? plan.bytes : wanted;
      // Small budgets keep little spare: the allocation itself decides.
      const int64_t spare = kSpareBytes + plan::FusedAttentionBytes(spec, c.tokens);
      if (budget_bytes == 0 || plan.bytes + std::min(spare, budget_bytes / 16) <= budget_bytes) {
        return plan;
      }
    }
  }
  return ResourceExhausted("does not fit: needs {} of {} with recompute {}, and too much with full",
                           Gib(wanted), Gib(budget_bytes), plan::Name(c.recompute));
}

absl::StatusOr<ResidentTraining> TrainResident(PartRun& run, const TrainCase& c, bool profile) {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Trained> trained, Trained::Make(run, c));
  const PartSizes& sizes = run.sizes();
  (void)run.TakeAttentionBackward();  // discards earlier passes
  absl::Time begin = absl::Now();
  // First runs load kernels, and an idle GPU takes a while to raise its clock.
  do {
    SHOAL_RETURN_IF_ERROR(trained->Run().status());
  } while (absl::Now() - begin < absl::Seconds(sizes.train_warm_seconds));
  ResidentTraining result{.plan = trained->plan()};
  std::vector<double> microbatches, optimizers, steps;
  begin = absl::Now();
  while (static_cast<int>(steps.size()) < std::max(sizes.train_steps, kLeastSteps)) {
    const absl::Time step_begin = absl::Now();
    SHOAL_ASSIGN_OR_RETURN(const Trained::Step step, trained->Run());
    microbatches.push_back(step.microbatch);
    optimizers.push_back(step.optimizer);
    steps.push_back(step.seconds());
    result.loss = step.loss;
    const absl::Duration long_enough = absl::Seconds(sizes.train_case_seconds);
    if (!run.HasTimeFor(absl::Now() - step_begin) ||
        (steps.size() >= kLeastSteps && absl::Now() - begin >= long_enough)) {
      break;
    }
  }
  result.steps = static_cast<int>(steps.size());
  result.microbatch_seconds = Median(std::move(microbatches));
  if (trained->has_optimizer()) {
    result.optimizer_seconds = Median(std::move(optimizers));
    result.step_seconds = Median(std::move(steps));
  }
  result.peak_bytes = trained->peak_bytes();
  result.attention_backward = run.TakeAttentionBackward();
  if (profile) {
    SHOAL_ASSIGN_OR_RETURN(result.operators, trained->Profile());
  }
  return result;
}

}  // namespace shoal::bench
