#include "core/plan/pipeline/pace_costs.h"

#include <array>
#include <cmath>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/step/cost_model.h"

namespace shoal::plan {
namespace {

struct Seconds {
  double forward = 0;
  double backward_input = 0;
  double backward_weights = 0;

  double sum() const { return forward + backward_input + backward_weights; }
};

// Returns the bytes that light recompute adds to the backward: norms of inputs are read and written
// again, and SwiGLU's backward, which has read everything it needs, writes one more.
double LightBytes(const PipelineModel& model, double rows) {
  const int64_t norms = model.spec.kind().norms_inputs() ? 4 * model.spec.hidden : 0;
  return rows * static_cast<double>(SizeOf(model.compute)) *
         static_cast<double>(norms + model.spec.mlp().intermediate);
}

double OrElse(double rate, double other) { return rate > 0 ? rate : other; }

// Of a block, on average: of all its matrices, or of its adapters alone.
double WeightFlops(const ModelSpec& spec, double rows) {
  return spec.adapters.empty() ? BlockMatrixFlops(spec, rows)
                               : rows * AdapterFlops(spec) / static_cast<double>(spec.layers);
}

Seconds BlockSeconds(const PipelineModel& model, const MicrobatchSize& size,
                     const PipelinePace& pace) {
  const auto rows = static_cast<double>(MicrobatchRows(size.tokens));
  const double matrices = BlockMatrixFlops(model.spec, rows);
  const double attention = BlockAttentionFlops(model.spec, size.squared_tokens);
  Seconds seconds{
      .forward = matrices / pace.forward_flops +
                 attention / OrElse(pace.attention_forward_flops, pace.forward_flops),
      .backward_input =
          matrices / pace.backward_input_flops +
          2 * attention / OrElse(pace.attention_backward_flops, pace.backward_input_flops),
      .backward_weights = WeightFlops(model.spec, rows) / pace.backward_weights_flops};
  if (model.recompute == Recompute::kFull) {
    seconds.backward_input += seconds.forward;
  } else if (model.recompute == Recompute::kLight && pace.elementwise_bytes_per_second > 0) {
    seconds.backward_input += LightBytes(model, rows) / pace.elementwise_bytes_per_second;
  }
  return seconds;
}

Seconds HeadSeconds(const PipelineModel& model, const MicrobatchSize& size,
                    const PipelinePace& pace) {
  const double once = HeadFlops(model.spec, static_cast<double>(MicrobatchRows(size.tokens)));
  const double weights = model.spec.adapters.empty() ? once : 0;  // else it is frozen
  return {.backward_input = once / OrElse(pace.head_flops, pace.forward_flops) +
                            once / OrElse(pace.head_flops, pace.backward_input_flops) +
                            weights / OrElse(pace.head_flops, pace.backward_weights_flops)};
}

double Over(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

ChunkCost CostOf(const PipelineModel& model, const UnitRange& units, const MicrobatchSize& size,
                 const PipelinePace& pace) {
  const ChunkBytes bytes =
      PlanChunkBytes(model.spec, model.compute, units, model.recompute, size.tokens);
  const Seconds block = BlockSeconds(model, size, pace);
  const bool head = units.contains(static_cast<int>(model.spec.layers) + 1);
  const int blocks = units.count - (head ? 1 : 0) - (units.contains(0) ? 1 : 0);
  const double message = pace.message_latency_seconds +
                         Over(static_cast<double>(bytes.message), pace.message_bytes_per_second);
  const auto moved = static_cast<double>(bytes.activations);
  ChunkCost cost{.forward = blocks * block.forward,
                 .backward_input = blocks * block.backward_input,
                 .backward_weights = blocks * block.backward_weights,
                 .offload = Over(moved, pace.offload_bytes_per_second),
                 .reload = Over(moved, pace.reload_bytes_per_second),
                 .send_activation = message,
                 .send_gradient = message,
                 .activation_bytes = bytes.activations,
                 .offload_bytes = bytes.activations,
                 .gradient_bytes = bytes.gradients};
  if (head) {
    cost.backward_input += HeadSeconds(model, size, pace).backward_input;
  }
  return cost;
}

}  // namespace

absl::Status Validate(const PipelinePace& pace) {
  const std::pair<const char*, double> rates[] = {
      {"forward FLOP/s", pace.forward_flops},
      {"backward input FLOP/s", pace.backward_input_flops},
      {"backward weights FLOP/s", pace.backward_weights_flops}};
  for (const auto& [name, rate] : rates) {
    if (!(rate > 0) || !std::isfinite(rate)) {
      return InvalidArgument("pace: {} is {}, must be positive", name, rate);
    }
  }
  const std::pair<const char*, double> others[] = {
      {"attention forward FLOP/s", pace.attention_forward_flops},
      {"attention backward FLOP/s", pace.attention_backward_flops},
      {"head FLOP/s", pace.head_flops},
      {"elementwise B/s", pace.elementwise_bytes_per_second},
      {"offload B/s", pace.offload_bytes_per_second},
      {"reload B/s", pace.reload_bytes_per_second},
      {"message B/s", pace.message_bytes_per_second},
      {"message latency", pace.message_latency_seconds}};
  for (const auto& [name, value] : others) {
    if (!(value >= 0) || !std::isfinite(value)) {
      return InvalidArgument("pace: {} is {}, must not be negative", name, value);
    }
  }
  return absl::OkStatus();
}

MicrobatchSize SizeOfSequences(std::span<const int64_t> lengths) {
  MicrobatchSize size;
  for (const int64_t length : lengths) {
    size.tokens += length;
    size.squared_tokens += static_cast<double>(length) * static_cast<double>(length);
  }
  return size;
}

std::vector<double> UnitCosts(const PipelineModel& model,
                              std::span<const MicrobatchSize> microbatches,
                              const PipelinePace& pace) {
  std::vector<double> costs(static_cast<size_t>(model.spec.layers) + 2, 0.0);
  double block = 0;
  for (const MicrobatchSize& size : microbatches) {
    block += BlockSeconds(model, size, pace).sum();
    costs.back() += HeadSeconds(model, size, pace).sum();
  }
  std::fill(costs.begin() + 1, costs.end() - 1, block);
  return costs;
}

ScheduleCosts PipelineCosts(const PipelineModel& model, const ScheduleShape& shape,
                            std::span<const UnitRange> split,
                            std::span<const MicrobatchSize> microbatches,
                            const PipelinePace& pace) {
  SHOAL_CHECK(split.size() == static_cast<size_t>(shape.VirtualStages()));
  SHOAL_CHECK(microbatches.size() == static_cast<size_t>(shape.microbatches));
  ScheduleCosts costs(shape, {});
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const UnitRange& units = split[shape.VirtualStageOf(stage, chunk)];
      for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
        costs.Of(stage, chunk, microbatch) = CostOf(model, units, microbatches[microbatch], pace);
      }
    }
  }
  return costs;
}

}  // namespace shoal::plan
