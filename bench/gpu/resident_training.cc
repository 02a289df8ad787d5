#include "bench/gpu/resident_training.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bench/gpu/batches.h"
#include "bench/gpu/resident_units.h"
#include "bench/gpu/timing.h"
#include "common/status.h"
#include "worker/model/runner.h"

namespace shoal::bench {
namespace {

constexpr int kWarmUp = 2;

}  // namespace

absl::StatusOr<ResidentTraining> TrainResident(PartRun& run, const plan::ModelSpec& spec,
                                               int64_t tokens) {
  SHOAL_ASSIGN_OR_RETURN(worker::Machine machine, run.options().make_machine(0));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<worker::Transformer> model,
                         worker::Transformer::Create(spec, DType::kBF16, std::move(machine)));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<ResidentWeights> weights,
                         ResidentWeights::Create(*model));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<ResidentGradients> gradients,
                         ResidentGradients::Create(*model));
  SHOAL_RETURN_IF_ERROR(weights->SetRandom(run.options().seed));
  const worker::PackedBatch batch = OneSequence(spec, tokens, run.options().seed);
  const double scale = 1.0 / static_cast<double>(batch.target_count());
  ResidentTraining trained;
  std::vector<double> seconds;
  for (int step = 0; step < kWarmUp + run.sizes().train_steps; ++step) {
    const absl::Time begin = absl::Now();
    SHOAL_ASSIGN_OR_RETURN(const worker::MicrobatchResult result,
                           RunMicrobatch(*model, batch, scale, *weights, *gradients));
    SHOAL_RETURN_IF_ERROR(model->ops().Finish());
    trained.loss = result.loss_sum / static_cast<double>(result.targets);
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    if (!std::isfinite(trained.loss)) {
      return Internal("the loss of random weights is {}", trained.loss);
    }
    if (step > 0 && !run.HasTimeFor(absl::Now() - begin)) {
      break;
    }
  }
  // Where time was short, what warms up counts but for the first.
  seconds.erase(seconds.begin(),
                seconds.begin() + std::min<std::ptrdiff_t>(kWarmUp, std::ssize(seconds) - 1));
  trained.seconds = Median(seconds);
  trained.steps = static_cast<int>(seconds.size());
  trained.peak_bytes = model->device().peak_bytes();
  return trained;
}

}  // namespace shoal::bench
