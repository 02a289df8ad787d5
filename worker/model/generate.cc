#include "worker/model/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "core/base/random.h"
#include "core/base/status.h"
#include "worker/model/head.h"
#include "worker/model/held_unit.h"

namespace shoal::worker {
namespace {

// Keys and values of one layer, rotated: [capacity, KV] each.
struct LayerCache {
  Matrix keys;
  Matrix values;
};

struct GenerateMemory {
  std::vector<LayerCache> caches;
  int32_t* tokens = nullptr;     // [rows]
  int32_t* positions = nullptr;  // [rows]
  BlockActivations activations;  // of `rows` rows: the prompt at first, one row after that
  Matrix other_input;            // [rows, H]
  Matrix normed;                 // [1, H]
  float* inverse_rms = nullptr;  // [1]
  Matrix logits;                 // [1, V], fp32

  static GenerateMemory Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                              int64_t capacity, int64_t rows) {
    GenerateMemory m;
    for (int64_t i = 0; i < spec.layers; ++i) {
      LayerCache& cache = m.caches.emplace_back();
      cache.keys = carver.TakeMatrix(compute, capacity, spec.attention().kv_size());
      cache.values = carver.TakeMatrix(compute, capacity, spec.attention().kv_size());
    }
    m.tokens = carver.TakeArray<int32_t>(rows);
    m.positions = carver.TakeArray<int32_t>(rows);
    m.activations = BlockActivations::Carve(carver, spec, compute, rows);
    m.other_input = carver.TakeMatrix(compute, rows, spec.hidden);
    m.normed = carver.TakeMatrix(compute, 1, spec.hidden);
    m.inverse_rms = carver.TakeArray<float>(1);
    m.logits = carver.TakeMatrix(DType::kF32, 1, spec.vocabulary);
    return m;
  }
};

// The first `rows` rows of every activation.
BlockActivations FirstRows(BlockActivations a, int64_t rows) {
  for (Matrix* matrix : {&a.input, &a.input_normed, &a.qk, &a.qkv, &a.attention,
                         &a.attention_output, &a.middle, &a.middle_normed, &a.gate_up, &a.activated,
                         &a.mlp_output, &a.adapters.reduced, &a.adapters.scratch}) {
    *matrix = matrix->Rows(0, rows);
  }
  return a;
}

class Generator {
 public:
  Generator(Transformer& model, UnitSource& source, const GenerateMemory& memory)
      : model_(model), spec_(model.spec()), source_(source), memory_(memory) {}

  // Runs `tokens` at positions from `first` on through the model (the whole prompt with first = 0,
  // or one token) and returns the logits of the last one.
  absl::StatusOr<std::vector<float>> Step(std::span<const int32_t> tokens, int64_t first) {
    Ops& ops = model_.ops();
    const auto count = static_cast<int64_t>(tokens.size());
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    ops.stream().Copy(memory_.tokens, tokens.data(), count * 4);
    ops.stream().Copy(memory_.positions, positions.data(), count * 4);
    SHOAL_RETURN_IF_ERROR(ops.stream().Synchronize());

    BlockActivations activations = FirstRows(memory_.activations, count);
    Matrix output = memory_.other_input.Rows(0, count);
    {
      SHOAL_ASSIGN_OR_RETURN(const HeldUnit embedding, HeldUnit::Get(model_, source_, 0));
      ops.EmbeddingForward(memory_.tokens, count,
                           embedding.matrix(0, spec_.vocabulary, spec_.hidden),
                           model_.embedding_scale(), activations.input);
    }
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      SHOAL_ASSIGN_OR_RETURN(const HeldBlock block,
                             HeldBlock::Get(model_, source_, static_cast<int>(layer) + 1));
      RunBlock(block.weights(model_), layer, activations, first, output);
      std::swap(activations.input, output);
    }
    return Logits(activations.input.Rows(count - 1, 1));
  }

 private:
  void RunBlock(const BlockWeights& weights, int64_t layer, const BlockActivations& a,
                int64_t first, Matrix output) {
    Ops& ops = model_.ops();
    const LayerCache& cache = memory_.caches[static_cast<size_t>(layer)];
    const plan::Attention& attention = weights.kind.attention;
    const int64_t count = a.input.rows;
    const int32_t cu_seqlens[] = {0, static_cast<int32_t>(count)};
    const SequenceContext sequences{.cu_seqlens = cu_seqlens,
                                    .rotation = model_.rotary().of(layer).At(memory_.positions)};
    const AttentionShape shape = ShapeOf(attention);
    BlockForwardQkv(ops, weights, sequences, a);
    ops.Convert(a.qkv.Columns(attention.q_size(), attention.kv_size()),
                cache.keys.Rows(first, count));
    ops.Convert(a.qkv.Columns(attention.q_size() + attention.kv_size(), attention.kv_size()),
                cache.values.Rows(first, count));
    if (first == 0) {
      ops.AttentionForward(a.qkv, shape, cu_seqlens, a.attention, a.log_sum_exp);
    } else {
      const int64_t seen = shape.window > 0 ? std::min(shape.window, first + 1) : first + 1;
      ops.AttentionDecode(a.qkv.Columns(0, attention.q_size()),
                          cache.keys.Rows(first + 1 - seen, seen),
                          cache.values.Rows(first + 1 - seen, seen), shape, a.attention);
    }
    BlockForwardOutput(ops, weights, a, output);
  }

  absl::StatusOr<std::vector<float>> Logits(Matrix hidden) {
    Ops& ops = model_.ops();
    SHOAL_ASSIGN_OR_RETURN(const HeldHead head, HeldHead::Get(model_, source_));
    ops.RmsNormForward(hidden, head.norm(), spec_.norm_epsilon, {}, memory_.normed,
                       memory_.inverse_rms);
    ops.Matmul({.a = memory_.normed, .b = head.matrix(), .c = memory_.logits, .transpose_b = true});
    SHOAL_RETURN_IF_ERROR(ops.Check());
    std::vector<float> logits(static_cast<size_t>(spec_.vocabulary));
    ops.stream().Copy(logits.data(), memory_.logits.data, spec_.vocabulary * 4);
    SHOAL_RETURN_IF_ERROR(ops.stream().Synchronize());
    model_.CapLogits(logits);
    return logits;
  }

  Transformer& model_;
  const plan::ModelSpec& spec_;
  UnitSource& source_;
  const GenerateMemory& memory_;
};

// Those that one may be drawn of: all, or the most likely ones, most likely first.
std::vector<int32_t> Candidates(const std::vector<float>& logits, const GenerateOptions& options) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto all = std::ssize(ids);
  const int64_t most = options.top_k > 0 ? std::min(options.top_k, all) : all;
  if (most < all || options.top_p < 1) {
    std::ranges::partial_sort(ids, ids.begin() + most, std::greater(), [&logits](int32_t id) {
      return std::pair(logits[static_cast<size_t>(id)], -id);
    });
    ids.resize(static_cast<size_t>(most));
  }
  return ids;
}

// Relative to that of the most likely token.
std::vector<double> Probabilities(const std::vector<float>& logits, const std::vector<int32_t>& ids,
                                  double temperature) {
  const double largest = static_cast<double>(*std::ranges::max_element(logits));
  std::vector<double> probabilities;
  for (const int32_t id : ids) {
    const double logit = static_cast<double>(logits[static_cast<size_t>(id)]);
    probabilities.push_back(std::exp((logit - largest) / temperature));
  }
  return probabilities;
}

int32_t Sample(const std::vector<float>& logits, const GenerateOptions& options, Random& random) {
  if (options.temperature <= 0) {
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  const std::vector<int32_t> ids = Candidates(logits, options);
  std::vector<double> cumulative = Probabilities(logits, ids, options.temperature);
  std::partial_sum(cumulative.begin(), cumulative.end(), cumulative.begin());
  const auto last =
      std::lower_bound(cumulative.begin(), cumulative.end() - 1, options.top_p * cumulative.back());
  const auto chosen = std::upper_bound(cumulative.begin(), last, random.Uniform() * *last);
  return ids[static_cast<size_t>(chosen - cumulative.begin())];
}

absl::Status ValidatePrompt(const plan::ModelSpec& spec, std::span<const int32_t> prompt,
                            const GenerateOptions& options) {
  if (prompt.empty()) {
    return InvalidArgument("generate: the prompt is empty; it needs one token at least");
  }
  if (static_cast<int64_t>(prompt.size()) >= spec.max_positions) {
    return OutOfRange("generate: the prompt has {} tokens, the model takes {} in all",
                      prompt.size(), spec.max_positions);
  }
  if (options.max_new_tokens < 0 || !(options.temperature >= 0) || options.top_k < 0 ||
      !(options.top_p > 0 && options.top_p <= 1)) {
    return InvalidArgument(
        "generate: max_new_tokens, temperature and top_k must not be negative, and top_p lies "
        "above "
        "0 and at most at 1");
  }
  for (const int32_t token : prompt) {
    if (token < 0 || token >= spec.vocabulary) {
      return InvalidArgument("generate: token {} is not within the vocabulary of {}", token,
                             spec.vocabulary);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> Generate(Transformer& model, UnitSource& source,
                                              std::span<const int32_t> prompt,
                                              const GenerateOptions& options) {
  const plan::ModelSpec& spec = model.spec();
  SHOAL_RETURN_IF_ERROR(ValidatePrompt(spec, prompt, options));
  const auto prompt_size = static_cast<int64_t>(prompt.size());
  const int64_t new_tokens = std::min(options.max_new_tokens, spec.max_positions - prompt_size);
  const int64_t capacity = prompt_size + new_tokens;
  model.rotary().ChooseFor(capacity);
  SHOAL_RETURN_IF_ERROR(model.rotary().Reserve(capacity, model.ops().stream()));
  SHOAL_ASSIGN_OR_RETURN(const GenerateMemory memory, model.workspace().Fill([&](Carver& carver) {
    return GenerateMemory::Carve(carver, spec, model.compute(), capacity, prompt_size);
  }));
  Generator generator(model, source, memory);
  Random random(options.seed);
  std::vector<int32_t> result;
  std::vector<float> logits;
  while (static_cast<int64_t>(result.size()) < new_tokens) {
    if (result.empty()) {
      SHOAL_ASSIGN_OR_RETURN(logits, generator.Step(prompt, 0));
    } else {
      const int64_t position = prompt_size + static_cast<int64_t>(result.size()) - 1;
      SHOAL_ASSIGN_OR_RETURN(logits,
                             generator.Step(std::span<const int32_t>(&result.back(), 1), position));
    }
    result.push_back(Sample(logits, options, random));
    if (options.on_token && !options.on_token(result.back())) {
      break;
    }
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), result.back()) !=
        options.stop_tokens.end()) {
      break;
    }
  }
  return result;
}

}  // namespace shoal::worker
