// Small models with random weights, for tests.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/model/adapters.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/runner.h"

namespace shoal::worker::testing_model {

inline plan::ModelSpec SmallSpec(bool tied = true) {
  return {.family = "llama",
          .vocabulary = 53,
          .hidden = 32,
          .layers = 2,
          .max_positions = 256,
          .tied_embeddings = tied,
          .kinds = {{.attention = {.heads = 4, .kv_heads = 2, .head_dim = 8},
                     .mlp = {.intermediate = 40}}}};
}

// Kinds of blocks take turns.
inline plan::ModelSpec WithLayers(plan::ModelSpec spec, int64_t layers) {
  spec.layers = layers;
  spec.kind_of_layer.clear();
  for (int64_t layer = 0; spec.kinds.size() > 1 && layer < layers; ++layer) {
    spec.kind_of_layer.push_back(static_cast<uint8_t>(layer % std::ssize(spec.kinds)));
  }
  return spec;
}

// Every optional part at once, and two kinds of blocks.
inline plan::ModelSpec FullSpec() {
  plan::ModelSpec spec = SmallSpec(false);
  plan::BlockKind& kind = spec.kinds[0];
  kind.attention.qkv_bias = true;
  kind.attention.output_bias = true;
  kind.attention.qk_norm = plan::QkNorm::kHead;
  kind.mlp.bias = true;
  kind.attention.head_dim = 12;  // heads x head_dim is not hidden
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].attention.window = 5;
  spec.kinds[0].attention.rope.scaling = plan::RopeScaling{.original_max_positions = 16};
  return WithLayers(spec, 2);
}

// FullSpec with norms of outputs in place of inputs, and norms over all heads of q and of k.
inline plan::ModelSpec PostNormSpec() {
  plan::ModelSpec spec = FullSpec();
  for (plan::BlockKind& kind : spec.kinds) {
    kind.norms = plan::Norms::kPost;
    kind.attention.qk_norm = plan::QkNorm::kWhole;
  }
  return spec;
}

// FullSpec with all that Gemma 2 has besides.
inline plan::ModelSpec SandwichSpec() {
  plan::ModelSpec spec = FullSpec();
  spec.family = "gemma2";
  spec.norm_offset = 1;
  spec.scaled_embeddings = true;
  spec.logits_softcap = 3;
  spec.tied_embeddings = true;
  for (plan::BlockKind& kind : spec.kinds) {
    kind.norms = plan::Norms::kSandwich;
    kind.attention.query_scalar = 20;
    kind.attention.softcap = 2;
    kind.mlp.gate = plan::Gate::kGeluTanh;
  }
  return spec;
}

// With an adapter at each of its matrices, or at two of them in its first layer alone.
inline plan::ModelSpec WithAdapters(const plan::ModelSpec& spec, bool all = true) {
  return *plan::WithAdapters(
      spec,
      all ? std::vector<std::string>{"all-linear"}
          : std::vector<std::string>{"*.0.self_attn.k_proj", "*.0.mlp.down_proj"},
      /*rank=*/4, /*scale=*/0.5);
}

// Matrices of deviation 0.2, norms around one, biases around zero; padding zero.
inline MemoryUnitSource RandomWeights(const std::vector<plan::UnitSpec>& units, DType dtype,
                                      uint64_t seed) {
  return *MemoryUnitSource::Load(units, dtype, [&](int index, int64_t, std::span<float> out) {
    Random random(seed, static_cast<uint64_t>(index));
    for (const plan::TensorSpec& tensor : units[static_cast<size_t>(index)].tensors) {
      const double mean = plan::IsNorm(tensor.role) ? 1.0 : 0.0;
      for (int64_t i = 0; i < tensor.count(); ++i) {
        out[static_cast<size_t>(tensor.offset + i)] =
            static_cast<float>(mean + 0.2 * random.Normal());
      }
    }
    return absl::OkStatus();
  });
}

inline std::vector<int32_t> RandomTokens(const plan::ModelSpec& spec, int64_t count,
                                         Random& random) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(spec.vocabulary)));
  }
  return tokens;
}

// Sequences of those lengths; if `masked`, about half of the targets are ignored.
inline PackedBatch RandomBatch(const plan::ModelSpec& spec, const std::vector<int64_t>& lengths,
                               uint64_t seed, bool masked = false) {
  Random random(seed);
  PackedBatch batch;
  for (const int64_t length : lengths) {
    batch.AppendNextToken(RandomTokens(spec, length, random));
  }
  for (int32_t& label : batch.labels) {
    if (masked && random.Below(2) == 0) {
      label = formats::kIgnoredLabel;
    }
  }
  return batch;
}

// Pairs of replies, of which a part is the prompt; lengths are above 1.
inline PackedBatch RandomPairs(const plan::ModelSpec& spec, const std::vector<int64_t>& lengths,
                               uint64_t seed, plan::PreferenceLoss loss) {
  PackedBatch batch = RandomBatch(spec, lengths, seed);
  Random random(seed, 1);
  for (size_t s = 0; s < lengths.size(); ++s) {
    const auto begin = batch.labels.begin() + batch.cu_seqlens[s];
    std::fill(begin,
              begin + static_cast<ptrdiff_t>(random.Below(static_cast<uint64_t>(lengths[s]) - 1)),
              formats::kIgnoredLabel);
    batch.references.push_back(-4.0 * static_cast<double>(lengths[s]) * random.Uniform());
  }
  batch.preference = {.loss = loss, .sft_weight = 0.25};
  return batch;
}

}  // namespace shoal::worker::testing_model
