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
#include "worker/model/batch_size.h"
#include "worker/model/memory_unit_access.h"
#include "worker/model/transformer.h"
#include "worker/model/transformer_stage.h"

namespace shoal::worker {
namespace {

constexpr double kWeightDeviation = 0.02;
// The head's rate does not change beyond; a large embedding need not be made for it.
constexpr int64_t kMostVocabulary = 8192;
// As many short sequences in place of a long one: attention then is a small part.
constexpr int64_t kShortSequences = 16;
constexpr plan::UnitRange kEmbedding = {.first = 0, .count = 1};
constexpr plan::UnitRange kBlock = {.first = 1, .count = 1};
constexpr plan::UnitRange kHead = {.first = 2, .count = 1};

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

// A microbatch of that many tokens in sequences of a length.
PackedBatch BatchOf(const plan::ModelSpec& spec, int64_t tokens, int64_t length) {
  PackedBatch batch;
  for (int64_t begin = 0; begin < tokens; begin += length) {
    std::vector<int32_t> sequence(static_cast<size_t>(std::min(length, tokens - begin)));
    for (size_t i = 0; i < sequence.size(); ++i) {
      sequence[i] = static_cast<int32_t>(i % static_cast<size_t>(spec.vocabulary));
    }
    batch.AppendNextToken(sequence);
  }
  return batch;
}

// What a part of the step took with long and with short sequences, which differ in attention alone.
struct Timed {
  double matrices = 0;  // FLOPs, in both
  std::array<double, 2> attention = {};
  std::array<double, 2> seconds = {};
};

struct Rates {
  double matrices = 0;  // FLOP/s
  double attention = 0;
};

// Where noise hides the difference, both are done at the rate of all.
Rates RatesOf(const Timed& timed) {
  const double together = (timed.matrices + timed.attention[0]) / timed.seconds[0];
  const double work = timed.attention[0] - timed.attention[1];
  const double seconds = timed.seconds[0] - timed.seconds[1];
  if (work <= 0 || seconds <= 0) {
    return {.matrices = together, .attention = together};
  }
  const double attention = work / seconds;
  const double matrices = timed.seconds[1] - timed.attention[1] / attention;
  if (matrices <= 0) {
    return {.matrices = together, .attention = together};
  }
  return {.matrices = timed.matrices / matrices, .attention = attention};
}

// A stage of three chunks: the embedding, which makes an input, one block, and the head.
absl::Status MeasureCompute(const plan::ModelSpec& spec, const ProbeOptions& options,
                            plan::PipelinePace& pace) {
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> transformer,
      Transformer::Create(spec, {.compute = options.compute, .threads = options.threads}));
  SHOAL_ASSIGN_OR_RETURN(MemoryUnitSource weights, RandomWeights(*transformer));
  MemoryGradientSink sink(transformer->units());
  Device& device = transformer->device();
  Ops& ops = transformer->ops();
  const std::array<plan::UnitRange, 3> chunks = {kEmbedding, kBlock, kHead};
  TransformerStage stage(std::move(transformer), chunks, plan::Recompute::kNone);
  const int64_t longest = options.sequence_tokens > 0
                              ? std::min(options.sequence_tokens, options.tokens)
                              : options.tokens;
  const std::vector<PackedBatch> batches = {
      BatchOf(spec, options.tokens, longest),
      BatchOf(spec, options.tokens, std::max<int64_t>(1, longest / kShortSequences))};
  SHOAL_RETURN_IF_ERROR(stage.BeginStep(batches, /*loss_scale=*/1, weights, sink));
  const plan::ChunkBytes bytes = stage.BytesOf(1, 0);
  const plan::ChunkBytes head_bytes = stage.BytesOf(2, 0);
  SHOAL_ASSIGN_OR_RETURN(const Buffer activations, device.Allocate(bytes.activations));
  SHOAL_ASSIGN_OR_RETURN(const Buffer gradients, device.Allocate(bytes.gradients));
  SHOAL_ASSIGN_OR_RETURN(const Buffer head_activations, device.Allocate(head_bytes.activations));
  SHOAL_ASSIGN_OR_RETURN(const Buffer input, device.Allocate(bytes.message));
  SHOAL_ASSIGN_OR_RETURN(const Buffer output, device.Allocate(bytes.message));

  const auto rows = static_cast<double>(plan::MicrobatchRows(options.tokens));
  Timed forward{.matrices = plan::BlockMatrixFlops(spec, rows)};
  Timed backward_input{.matrices = forward.matrices};
  double backward_weights = 0;
  double head = 0;
  const auto measure = [&](const std::function<absl::Status()>& work) {
    return Measure(options.rounds, [&] {
      SHOAL_RETURN_IF_ERROR(work());
      return ops.Finish();
    });
  };
  for (int i = 0; i < 2; ++i) {
    const double attention = plan::BlockAttentionFlops(
        spec, SizeOfBatch(batches[static_cast<size_t>(i)]).squared_tokens);
    forward.attention[static_cast<size_t>(i)] = attention;
    backward_input.attention[static_cast<size_t>(i)] = 2 * attention;
    SHOAL_RETURN_IF_ERROR(stage.Forward(0, i, nullptr, nullptr, input.data()));
    SHOAL_ASSIGN_OR_RETURN(forward.seconds[static_cast<size_t>(i)], measure([&] {
                             return stage.Forward(1, i, activations.data(), input.data(),
                                                  output.data());
                           }));
    SHOAL_RETURN_IF_ERROR(stage.Forward(2, i, head_activations.data(), output.data(), nullptr));
    SHOAL_ASSIGN_OR_RETURN(head, measure([&] {
                             return stage.Backward(2, i, head_activations.data(), nullptr,
                                                   output.data());
                           }));
    SHOAL_ASSIGN_OR_RETURN(backward_input.seconds[static_cast<size_t>(i)], measure([&] {
                             return stage.BackwardInput(1, i, activations.data(), gradients.data(),
                                                        output.data(), input.data());
                           }));
    SHOAL_ASSIGN_OR_RETURN(
        backward_weights,
        measure([&] { return stage.BackwardWeights(1, i, activations.data(), gradients.data()); }));
  }
  // Norms and SwiGLU go as fast as memory: what is made again reads and writes as a copy does.
  SHOAL_ASSIGN_OR_RETURN(const double copy, Measure(options.rounds, [&] {
                           ops.stream().Copy(gradients.data(), activations.data(),
                                             std::min(bytes.activations, bytes.gradients));
                           return ops.stream().Synchronize();
                         }));
  const Rates forward_rates = RatesOf(forward);
  const Rates backward_rates = RatesOf(backward_input);
  pace.forward_flops = forward_rates.matrices;
  pace.attention_forward_flops = forward_rates.attention;
  pace.backward_input_flops = backward_rates.matrices;
  pace.attention_backward_flops = backward_rates.attention;
  pace.backward_weights_flops = forward.matrices / backward_weights;
  pace.head_flops = 3 * plan::HeadFlops(spec, rows) / head;
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
  one_block.vocabulary = std::min(spec.vocabulary, kMostVocabulary);
  plan::PipelinePace pace;
  SHOAL_RETURN_IF_ERROR(MeasureCompute(one_block, options, pace));
  SHOAL_RETURN_IF_ERROR(MeasureCopies(spec, options, pace));
  pace.duplex = options.duplex;
  return pace;
}

}  // namespace shoal::worker
