#include "bench/gpu_check/parts/whole_model.h"

#include <algorithm>
#include <cmath>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/pipeline/offload_ratio.h"
#include "core/plan/pipeline/pace_costs.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "fmt/format.h"
#include "worker/model/batch/batch_size.h"

namespace shoal::bench {
namespace {

// Most time for the device to finish a step: the longest sequences take most of a minute.
constexpr absl::Duration kStepTimeout = absl::Minutes(10);

std::vector<plan::MicrobatchSize> SizesOf(const std::vector<worker::PackedBatch>& batches) {
  std::vector<plan::MicrobatchSize> sizes;
  for (const worker::PackedBatch& batch : batches) {
    sizes.push_back(worker::SizeOfBatch(batch));
  }
  return sizes;
}

double InGib(double bytes) { return bytes / (1 << 30); }

}  // namespace

absl::StatusOr<std::unique_ptr<HostPiece>> HostPiece::Make(PartRun& run, int64_t bytes) {
  std::unique_ptr<HostPiece> piece(new HostPiece());
  SHOAL_ASSIGN_OR_RETURN(piece->compute_device_, run.options().make_device(0));
  piece->memory_ = piece->compute_device_.device->NewHostMemory(0);
  if (bytes == 0) {
    return piece;
  }
  absl::StatusOr<worker::Buffer> buffer;
  for (int64_t wanted = bytes; wanted >= bytes / 8; wanted /= 2) {
    buffer = piece->memory_->Allocate(wanted);
    if (buffer.ok()) {
      piece->buffer_ = *std::move(buffer);
      return piece;
    }
  }
  return buffer.status();
}

absl::StatusOr<worker::Buffer> HostPiece::Allocate(int64_t bytes) {
  if (taken_ > 0 || bytes > buffer_.bytes()) {
    return ResourceExhausted("pinned memory: {} B asked for, {} of {} B in use", bytes, taken_,
                             buffer_.bytes());
  }
  taken_ = bytes;
  return worker::Buffer(this, buffer_.data(), bytes);
}

WholeModel::WholeModel(const plan::ModelSpec& spec) : spec_(spec), time_kinds_(RealClock()) {
  choice_.schedule = {.kind = plan::ScheduleKind::kAccumulation};
  choice_.recompute = kRecompute;
}

absl::StatusOr<std::unique_ptr<WholeModel>> WholeModel::Make(PartRun& run,
                                                             const plan::ModelSpec& spec,
                                                             int chunks, worker::Memory& host) {
  std::unique_ptr<WholeModel> whole(new WholeModel(spec));
  SHOAL_ASSIGN_OR_RETURN(
      whole->choice_.split,
      plan::SplitLayers(std::vector<double>(static_cast<size_t>(spec.layers) + 2, 1.0), 1, chunks,
                        plan::PlacementOf(whole->choice_.schedule)));
  whole->choice_.chunks = chunks;
  SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device, run.options().make_device(0));
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<worker::Transformer> model,
      worker::Transformer::Create(spec, DType::kBF16, std::move(compute_device)));
  whole->model_ = model.get();
  whole->stage_ = std::make_unique<worker::TransformerStage>(std::move(model), whole->choice_.split,
                                                             kRecompute);
  SHOAL_ASSIGN_OR_RETURN(whole->weights_, ResidentWeights::Create(*whole->model_));
  SHOAL_ASSIGN_OR_RETURN(whole->gradients_, ResidentGradients::Create(*whole->model_));
  SHOAL_RETURN_IF_ERROR(whole->weights_->SetRandom(run.options().seed));
  whole->runner_ = std::make_unique<worker::StageRunner>(
      worker::StageRunnerOptions{.model = whole->stage_.get(),
                                 .device = &whole->model_->device(),
                                 .compute = &whole->model_->ops().stream(),
                                 .host = &host,
                                 .time_kinds = &whole->time_kinds_,
                                 .wait_timeout = kStepTimeout});
  return whole;
}

absl::Status WholeModel::MakeSchedule(const std::vector<worker::PackedBatch>& batches,
                                      int64_t host_bytes, const plan::PipelinePace& pace) {
  choice_.offloaded_chunks = Offloaded(batches, host_bytes);
  SHOAL_ASSIGN_OR_RETURN(
      schedule_, plan::BuildChosenSchedule(spec_, DType::kBF16, choice_, SizesOf(batches), pace));
  return absl::OkStatus();
}

absl::StatusOr<WholeModel::Step> WholeModel::Run(const std::vector<worker::PackedBatch>& batches) {
  gradients_->Clear();
  SHOAL_RETURN_IF_ERROR(model_->ops().Finish());
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
    step.loss += result.loss_sum;
  }
  if (!std::isfinite(step.loss)) {
    return Internal("the loss of random weights is {}", step.loss);
  }
  return step;
}

double WholeModel::CopySeconds(const worker::StageReport& report) const {
  double seconds = 0, moved = 0;
  for (const worker::StageSpan& span : report.spans) {
    if (span.kind == worker::StageSpan::Kind::kOffload ||
        span.kind == worker::StageSpan::Kind::kReload) {
      seconds += absl::ToDoubleSeconds(span.length);
    }
    if (span.kind == worker::StageSpan::Kind::kOffload) {
      moved += BytesOf(span.action.chunk, span.action.microbatch);
    }
  }
  return moved > 0 ? seconds * AllBytes() / moved : 0;
}

std::string WholeModel::Moved(const worker::StageReport& report) const {
  int chunks = 0;
  double bytes = 0;
  for (const worker::StageSpan& span : report.spans) {
    if (span.kind == worker::StageSpan::Kind::kOffload) {
      ++chunks;
      bytes += BytesOf(span.action.chunk, span.action.microbatch);
    }
  }
  return fmt::format("{} of {} chunks, {:.1f} of {:.1f} GiB", chunks,
                     choice_.chunks * schedule_.shape.microbatches, InGib(bytes),
                     InGib(AllBytes()));
}

absl::StatusOr<WholeModel::Planned> WholeModel::PlannedOf(
    const std::vector<worker::PackedBatch>& batches, const plan::PipelinePace& pace) const {
  const plan::ScheduleCosts costs =
      plan::PipelineCosts({.spec = spec_, .compute = DType::kBF16, .recompute = kRecompute},
                          schedule_.shape, choice_.split, SizesOf(batches), pace);
  SHOAL_ASSIGN_OR_RETURN(
      const plan::ScheduleTimes times,
      plan::SimulateSchedule(schedule_, costs, plan::StreamsOf(pace), plan::Spans::kNone));
  return Planned{.ratio = plan::OffloadRatio(schedule_.shape, costs),
                 .device_bytes = times.stages.front().peak_device_bytes,
                 .host_bytes = times.stages.front().peak_host_bytes};
}

int WholeModel::Offloaded(const std::vector<worker::PackedBatch>& batches,
                          int64_t host_bytes) const {
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

double WholeModel::BytesOf(int chunk, int microbatch) const {
  return static_cast<double>(stage_->BytesOf(chunk, microbatch).activations);
}

double WholeModel::AllBytes() const {
  double bytes = 0;
  for (int chunk = 0; chunk < choice_.chunks; ++chunk) {
    for (int microbatch = 0; microbatch < schedule_.shape.microbatches; ++microbatch) {
      bytes += BytesOf(chunk, microbatch);
    }
  }
  return bytes;
}

}  // namespace shoal::bench
