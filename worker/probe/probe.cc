#include "worker/probe/probe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/random.h"
#include "common/status.h"
#include "plan/activation_bytes.h"
#include "plan/schedule_costs.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/model/memory_unit_access.h"
#include "worker/model/transformer.h"
#include "worker/model/transformer_stage.h"

namespace shoal::worker {
namespace {

constexpr double kWeightDeviation = 0.02;
constexpr int64_t kVocabulary = 64;  // of the one that makes the block's input
constexpr plan::UnitRange kEmbedding = {.first = 0, .count = 1};
constexpr plan::UnitRange kBlock = {.first = 1, .count = 1};

// Seconds of `work`: the median of the rounds, after one that warms up.
absl::StatusOr<double> Measure(int rounds, const std::function<absl::Status()>& work) {
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const absl::Time begin = RealClock().Now();
    SHOAL_RETURN_IF_ERROR(work());
    if (round > 0) {
      seconds.push_back(absl::ToDoubleSeconds(RealClock().Now() - begin));
    }
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return std::max(*middle, 1e-9);
}

absl::StatusOr<MemoryUnitSource> RandomWeights(const Transformer& model) {
  return MemoryUnitSource::Load(
      model.units(), model.compute(), [](int unit, int64_t offset, std::span<float> out) {
        Random random(static_cast<uint64_t>(unit), static_cast<uint64_t>(offset));
        for (float& element : out) {
          element = static_cast<float>(kWeightDeviation * random.Normal());
        }
        return absl::OkStatus();
      });
}

// By the rules of plan/pipeline_pace.h: at a FLOP a second, seconds are FLOPs.
plan::ChunkCost FlopsOfBlock(const plan::ModelSpec& spec, const ProbeOptions& options) {
  const plan::PipelinePace unit = {
      .forward_flops = 1, .backward_input_flops = 1, .backward_weights_flops = 1};
  const std::array<plan::UnitRange, 1> split = {kBlock};
  const std::array<int64_t, 1> lengths = {options.tokens};
  const std::array<plan::MicrobatchSize, 1> sizes = {plan::SizeOfSequences(lengths)};
  return plan::PipelineCosts({.spec = spec, .compute = options.compute}, {}, split, sizes, unit)
      .Of(0, 0, 0);
}

// A stage whose first chunk is the embedding, which makes an input for the second, one block.
absl::Status MeasureCompute(const plan::ModelSpec& spec, const ProbeOptions& options,
                            plan::PipelinePace& pace) {
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> transformer,
      Transformer::Create(spec, {.compute = options.compute, .threads = options.threads}));
  SHOAL_ASSIGN_OR_RETURN(MemoryUnitSource weights, RandomWeights(*transformer));
  MemoryGradientSink sink(transformer->units());
  Device& device = transformer->device();
  Ops& ops = transformer->ops();
  const std::array<plan::UnitRange, 2> chunks = {kEmbedding, kBlock};
  TransformerStage stage(std::move(transformer), chunks, plan::Recompute::kNone);
  std::vector<PackedBatch> batches(1);
  std::vector<int32_t> tokens(static_cast<size_t>(options.tokens));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(i % kVocabulary);
  }
  batches.front().AppendNextToken(tokens);
  SHOAL_RETURN_IF_ERROR(stage.BeginStep(batches, /*loss_scale=*/1, weights, sink));
  const plan::ChunkBytes bytes = stage.BytesOf(1, 0);
  SHOAL_ASSIGN_OR_RETURN(const Buffer activations, device.Allocate(bytes.activations));
  SHOAL_ASSIGN_OR_RETURN(const Buffer gradients, device.Allocate(bytes.gradients));
  SHOAL_ASSIGN_OR_RETURN(const Buffer input, device.Allocate(bytes.message));
  SHOAL_ASSIGN_OR_RETURN(const Buffer output, device.Allocate(bytes.message));
  SHOAL_RETURN_IF_ERROR(stage.Forward(0, 0, nullptr, nullptr, input.data()));

  const plan::ChunkCost flops = FlopsOfBlock(spec, options);
  SHOAL_ASSIGN_OR_RETURN(
      const double forward, Measure(options.rounds, [&] {
        SHOAL_RETURN_IF_ERROR(stage.Forward(1, 0, activations.data(), input.data(), output.data()));
        return ops.Finish();
      }));
  SHOAL_ASSIGN_OR_RETURN(
      const double backward_input, Measure(options.rounds, [&] {
        SHOAL_RETURN_IF_ERROR(stage.BackwardInput(1, 0, activations.data(), gradients.data(),
                                                  input.data(), output.data()));
        return ops.Finish();
      }));
  SHOAL_ASSIGN_OR_RETURN(
      const double backward_weights, Measure(options.rounds, [&] {
        SHOAL_RETURN_IF_ERROR(stage.BackwardWeights(1, 0, activations.data(), gradients.data()));
        return ops.Finish();
      }));
  // Norms and SwiGLU go as fast as memory: what is made again reads and writes as a copy does.
  SHOAL_ASSIGN_OR_RETURN(const double copy, Measure(options.rounds, [&] {
                           ops.stream().Copy(gradients.data(), activations.data(),
                                             std::min(bytes.activations, bytes.gradients));
                           return ops.stream().Synchronize();
                         }));
  pace.forward_flops = flops.forward / forward;
  pace.backward_input_flops = flops.backward_input / backward_input;
  pace.backward_weights_flops = flops.backward_weights / backward_weights;
  pace.elementwise_bytes_per_second =
      2 * static_cast<double>(std::min(bytes.activations, bytes.gradients)) / copy;
  return absl::OkStatus();
}

// Bytes a second to the host and back.
absl::Status MeasureCopies(const plan::ModelSpec& spec, const ProbeOptions& options,
                           plan::PipelinePace& pace) {
  const std::unique_ptr<Device> device =
      MakeCpuDevice(0, {.bytes_per_second = options.copy_bytes_per_second});
  const std::unique_ptr<Memory> host = device->NewHostMemory(0);
  const int64_t bytes = plan::BlockActivationBytes(spec, options.compute, plan::Recompute::kNone,
                                                   plan::MicrobatchRows(options.tokens));
  SHOAL_ASSIGN_OR_RETURN(const Buffer there, device->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(const Buffer here, host->Allocate(bytes));
  const std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kCopy);
  SHOAL_ASSIGN_OR_RETURN(const double offload, Measure(options.rounds, [&] {
                           stream->Copy(here.data(), there.data(), bytes);
                           return stream->Synchronize();
                         }));
  SHOAL_ASSIGN_OR_RETURN(const double reload, Measure(options.rounds, [&] {
                           stream->Copy(there.data(), here.data(), bytes);
                           return stream->Synchronize();
                         }));
  pace.offload_bytes_per_second = static_cast<double>(bytes) / offload;
  pace.reload_bytes_per_second = static_cast<double>(bytes) / reload;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<plan::PipelinePace> ProbePace(const plan::ModelSpec& spec,
                                             const ProbeOptions& options) {
  if (options.tokens <= 0 || options.rounds <= 0) {
    return InvalidArgument("probe: {} tokens and {} rounds, both must be positive", options.tokens,
                           options.rounds);
  }
  plan::ModelSpec one_block = spec;
  one_block.layers = 1;
  one_block.vocabulary = kVocabulary;
  plan::PipelinePace pace;
  SHOAL_RETURN_IF_ERROR(MeasureCompute(one_block, options, pace));
  SHOAL_RETURN_IF_ERROR(MeasureCopies(spec, options, pace));
  pace.duplex = options.duplex;
  return pace;
}

}  // namespace shoal::worker
