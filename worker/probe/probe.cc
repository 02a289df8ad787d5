#include "worker/probe/probe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/schedule/schedule_costs.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/batch/batch_size.h"
#include "worker/model/resident_unit_access.h"
#include "worker/model/transformer.h"
#include "worker/model/transformer_stage.h"
#include "worker/ops/cpu/cpu_ops.h"

namespace shoal::worker {
namespace {

constexpr double kWeightDeviation = 0.02;
// Weights repeat after this many, a distance that is no power of two: drawing each of a large
// block's would take longer than measuring it.
constexpr size_t kDifferentWeights = 250007;
// The head's rate is constant beyond this, which avoids making a large embedding.
constexpr int64_t kMostVocabulary = 8192;
// This many short sequences replace a long one, so that attention is a small part.
constexpr int64_t kShortSequences = 16;
// Queued on a stream.
constexpr double kMostCopies = 256;
constexpr plan::UnitRange kEmbedding = {.first = 0, .count = 1};
constexpr plan::UnitRange kBlock = {.first = 1, .count = 1};
constexpr plan::UnitRange kHead = {.first = 2, .count = 1};

// The median, without the first round, which warms up.
double Median(std::vector<double> seconds) {
  seconds.erase(seconds.begin());
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return std::max(*middle, 1e-9);
}

// Seconds of `work` on the stream, which stays busy between rounds.
absl::StatusOr<double> MeasureOn(Stream& stream, int rounds,
                                 const std::function<absl::Status()>& work) {
  std::vector<std::unique_ptr<Event>> events;
  events.push_back(stream.Record());
  for (int round = 0; round <= rounds; ++round) {
    SHOAL_RETURN_IF_ERROR(work());
    events.push_back(stream.Record());
  }
  SHOAL_RETURN_IF_ERROR(stream.Synchronize());
  std::vector<double> seconds;
  for (size_t i = 1; i < events.size(); ++i) {
    seconds.push_back(absl::ToDoubleSeconds(events[i]->at() - events[i - 1]->at()));
  }
  return Median(std::move(seconds));
}

// Seconds until `work` returns.
absl::StatusOr<double> Measure(int rounds, const std::function<absl::Status()>& work) {
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const absl::Time begin = RealClock().Now();
    SHOAL_RETURN_IF_ERROR(work());
    seconds.push_back(absl::ToDoubleSeconds(RealClock().Now() - begin));
  }
  return Median(std::move(seconds));
}

absl::StatusOr<MemoryUnitSource> RandomWeights(const Transformer& model) {
  return MemoryUnitSource::Load(
      model.units(), model.compute(), [](int unit, int64_t offset, std::span<float> out) {
        Random random(static_cast<uint64_t>(unit), static_cast<uint64_t>(offset));
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = i < kDifferentWeights ? static_cast<float>(kWeightDeviation * random.Normal())
                                         : out[i - kDifferentWeights];
        }
        return absl::OkStatus();
      });
}

// Makes a microbatch of that many tokens in sequences of that length.
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

// A part of the step with long and with short sequences, which differ only in attention.
struct Timed {
  double matrices = 0;  // FLOPs, in both
  std::array<double, 2> attention = {};
  std::array<double, 2> seconds = {};
};

struct Rates {
  double matrices = 0;  // FLOP/s
  double attention = 0;
};

// If noise hides the difference, both get the rate of the whole.
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

// A stage of three chunks (the embedding, which makes an input, one block, and the head), with the
// streams and memory for measuring it.
class ProbedStage {
 public:
  static absl::StatusOr<std::unique_ptr<ProbedStage>> Create(const plan::ModelSpec& spec,
                                                             const ProbeOptions& options,
                                                             ComputeDevice compute_device);
  // Measures the rates of compute.
  absl::Status MeasureCompute(plan::PipelinePace& pace);
  // Measures the rates of copies; `pace` has those of compute.
  absl::Status MeasureCopies(ProbeResult& result);

 private:
  ProbedStage(const plan::ModelSpec& spec, const ProbeOptions& options)
      : spec_(spec), options_(options) {}
  absl::StatusOr<double> MeasureWork(const std::function<absl::Status()>& work) {
    SHOAL_ASSIGN_OR_RETURN(const double seconds, MeasureOn(ops_->stream(), options_.rounds, work));
    SHOAL_RETURN_IF_ERROR(ops_->Check());
    return seconds;
  }
  absl::Status Forward(int batch) {
    return stage_->Forward(1, batch, activations_.data(), input_.data(), output_.data());
  }

  const plan::ModelSpec spec_;
  const ProbeOptions options_;
  std::unique_ptr<TransformerStage> stage_;
  Device* device_ = nullptr;  // the stage's
  Ops* ops_ = nullptr;
  std::optional<ResidentUnitSource> weights_;
  std::optional<ResidentGradientSink> gradients_of_weights_;
  std::vector<PackedBatch> batches_;
  plan::ChunkBytes bytes_;
  Buffer activations_;
  Buffer gradients_;
  Buffer head_activations_;
  Buffer input_;
  Buffer output_;
};

absl::StatusOr<std::unique_ptr<ProbedStage>> ProbedStage::Create(const plan::ModelSpec& spec,
                                                                 const ProbeOptions& options,
                                                                 ComputeDevice compute_device) {
  std::unique_ptr<ProbedStage> probed(new ProbedStage(spec, options));
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Transformer> transformer,
                         Transformer::Create(spec, options.compute, std::move(compute_device)));
  probed->device_ = &transformer->device();
  probed->ops_ = &transformer->ops();
  SHOAL_ASSIGN_OR_RETURN(MemoryUnitSource weights, RandomWeights(*transformer));
  SHOAL_ASSIGN_OR_RETURN(ResidentUnitSource resident,
                         ResidentUnitSource::Load(*transformer, weights));
  probed->weights_.emplace(std::move(resident));
  SHOAL_ASSIGN_OR_RETURN(ResidentGradientSink sink, ResidentGradientSink::Create(*transformer));
  probed->gradients_of_weights_.emplace(std::move(sink));
  const std::array<plan::UnitRange, 3> chunks = {kEmbedding, kBlock, kHead};
  probed->stage_ =
      std::make_unique<TransformerStage>(std::move(transformer), chunks, plan::Recompute::kNone);
  const int64_t longest = options.sequence_tokens > 0
                              ? std::min(options.sequence_tokens, options.tokens)
                              : options.tokens;
  probed->batches_ = {
      BatchOf(spec, options.tokens, longest),
      BatchOf(spec, options.tokens, std::max<int64_t>(1, longest / kShortSequences))};
  SHOAL_RETURN_IF_ERROR(probed->stage_->BeginStep(
      probed->batches_, /*loss_scale=*/1, *probed->weights_, *probed->gradients_of_weights_));
  Device& device = *probed->device_;
  probed->bytes_ = probed->stage_->BytesOf(1, 0);
  const plan::ChunkBytes& bytes = probed->bytes_;
  const plan::ChunkBytes head_bytes = probed->stage_->BytesOf(2, 0);
  SHOAL_ASSIGN_OR_RETURN(probed->activations_, device.Allocate(bytes.activations));
  SHOAL_ASSIGN_OR_RETURN(probed->gradients_, device.Allocate(bytes.gradients));
  SHOAL_ASSIGN_OR_RETURN(probed->head_activations_, device.Allocate(head_bytes.activations));
  SHOAL_ASSIGN_OR_RETURN(probed->input_, device.Allocate(bytes.message));
  SHOAL_ASSIGN_OR_RETURN(probed->output_, device.Allocate(bytes.message));
  return probed;
}

absl::Status ProbedStage::MeasureCompute(plan::PipelinePace& pace) {
  const auto rows = static_cast<double>(plan::MicrobatchRows(options_.tokens));
  Timed forward{.matrices = plan::BlockMatrixFlops(spec_, rows)};
  Timed backward_input{.matrices = forward.matrices};
  double backward_weights = 0;
  double head = 0;
  for (int i = 0; i < 2; ++i) {
    const auto index = static_cast<size_t>(i);
    const double attention =
        plan::BlockAttentionFlops(spec_, SizeOfBatch(batches_[index]).squared_tokens);
    forward.attention[index] = attention;
    backward_input.attention[index] = 2 * attention;
    SHOAL_RETURN_IF_ERROR(stage_->Forward(0, i, nullptr, nullptr, input_.data()));
    SHOAL_ASSIGN_OR_RETURN(forward.seconds[index], MeasureWork([&] { return Forward(i); }));
    SHOAL_RETURN_IF_ERROR(stage_->Forward(2, i, head_activations_.data(), output_.data(), nullptr));
    SHOAL_ASSIGN_OR_RETURN(head, MeasureWork([&] {
                             return stage_->Backward(2, i, head_activations_.data(), nullptr,
                                                     output_.data());
                           }));
    SHOAL_ASSIGN_OR_RETURN(backward_input.seconds[index], MeasureWork([&] {
                             return stage_->BackwardInput(1, i, activations_.data(),
                                                          gradients_.data(), output_.data(),
                                                          input_.data());
                           }));
    SHOAL_ASSIGN_OR_RETURN(backward_weights, MeasureWork([&] {
                             return stage_->BackwardWeights(1, i, activations_.data(),
                                                            gradients_.data());
                           }));
  }
  // Norms and SwiGLU are bound by memory: recomputing reads and writes as a copy does.
  const int64_t copied = std::min(bytes_.activations, bytes_.gradients);
  SHOAL_ASSIGN_OR_RETURN(const double copy, MeasureWork([&] {
                           ops_->stream().Copy(gradients_.data(), activations_.data(), copied);
                           return absl::OkStatus();
                         }));
  const Rates forward_rates = RatesOf(forward);
  const Rates backward_rates = RatesOf(backward_input);
  pace.forward_flops = forward_rates.matrices;
  pace.attention_forward_flops = forward_rates.attention;
  pace.backward_input_flops = backward_rates.matrices;
  pace.attention_backward_flops = backward_rates.attention;
  pace.backward_weights_flops = forward.matrices / backward_weights;
  pace.head_flops = 3 * plan::HeadFlops(spec_, rows) / head;
  pace.elementwise_bytes_per_second = 2 * static_cast<double>(copied) / copy;
  return absl::OkStatus();
}

absl::Status ProbedStage::MeasureCopies(ProbeResult& result) {
  const std::unique_ptr<Memory> host = device_->NewHostMemory(0);
  const int64_t bytes = bytes_.activations;
  SHOAL_ASSIGN_OR_RETURN(const Buffer from, device_->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(const Buffer to, device_->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(const Buffer offloaded, host->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(const Buffer reloaded, host->Allocate(bytes));
  const std::unique_ptr<Stream> offloads = device_->NewStream(StreamKind::kCopy);
  const std::unique_ptr<Stream> reloads = device_->NewStream(StreamKind::kCopy);
  ops_->stream().Zero(from.data(), bytes);
  offloads->WaitFor(*ops_->stream().Record());
  const auto offload = [&] { offloads->Copy(offloaded.data(), from.data(), bytes); };
  const auto reload = [&] { reloads->Copy(to.data(), reloaded.data(), bytes); };
  SHOAL_ASSIGN_OR_RETURN(const double offload_seconds, Measure(options_.rounds, [&] {
                           offload();
                           return offloads->Synchronize();
                         }));
  SHOAL_ASSIGN_OR_RETURN(const double reload_seconds, Measure(options_.rounds, [&] {
                           reload();
                           return reloads->Synchronize();
                         }));
  SHOAL_ASSIGN_OR_RETURN(const double both_seconds, Measure(options_.rounds, [&] {
                           offload();
                           reload();
                           SHOAL_RETURN_IF_ERROR(offloads->Synchronize());
                           return reloads->Synchronize();
                         }));
  const auto size = static_cast<double>(bytes);
  result.duplex_offload_bytes_per_second = result.duplex_reload_bytes_per_second =
      size / both_seconds;
  plan::PipelinePace& pace = result.pace;
  pace.duplex = options_.duplex;
  pace.offload_bytes_per_second = size / (options_.duplex ? both_seconds : offload_seconds);
  pace.reload_bytes_per_second = size / (options_.duplex ? both_seconds : reload_seconds);

  SHOAL_ASSIGN_OR_RETURN(const double alone, MeasureWork([&] { return Forward(0); }));
  // Enough copies to last longer than all rounds.
  const auto copies =
      static_cast<int>(std::min(kMostCopies, 2 * (options_.rounds + 2) * alone / both_seconds)) + 1;
  for (int i = 0; i < copies; ++i) {
    offload();
    reload();
  }
  SHOAL_ASSIGN_OR_RETURN(const double beside, MeasureWork([&] { return Forward(0); }));
  result.forward_beside_copies = beside / alone;
  SHOAL_RETURN_IF_ERROR(offloads->Synchronize());
  return reloads->Synchronize();
}

}  // namespace

absl::StatusOr<ProbeResult> Probe(const plan::ModelSpec& spec, const ProbeOptions& options,
                                  ComputeDevice compute_device) {
  if (options.tokens <= 0 || options.rounds <= 0) {
    return InvalidArgument("probe: {} tokens and {} rounds, both must be positive", options.tokens,
                           options.rounds);
  }
  plan::ModelSpec one_block = plan::FirstLayers(spec, 1);
  one_block.vocabulary = std::min(spec.vocabulary, kMostVocabulary);
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<ProbedStage> stage,
                         ProbedStage::Create(one_block, options, std::move(compute_device)));
  ProbeResult result;
  SHOAL_RETURN_IF_ERROR(stage->MeasureCompute(result.pace));
  SHOAL_RETURN_IF_ERROR(stage->MeasureCopies(result));
  return result;
}

absl::StatusOr<plan::PipelinePace> ProbePace(const plan::ModelSpec& spec,
                                             const CpuProbeOptions& options) {
  ComputeDevice compute_device;
  compute_device.device = MakeCpuDevice(0, {.bytes_per_second = options.copy_bytes_per_second});
  compute_device.ops = MakeCpuOps(*compute_device.device, options.threads);
  SHOAL_ASSIGN_OR_RETURN(const ProbeResult result,
                         Probe(spec, options.probe, std::move(compute_device)));
  return result.pace;
}

}  // namespace shoal::worker
