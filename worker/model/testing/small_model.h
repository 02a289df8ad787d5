// Small models with random weights, for tests.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/runner.h"

namespace shoal::worker::testing_model {

inline plan::ModelSpec SmallSpec(bool tied = true) {
  plan::ModelSpec spec;
  spec.vocabulary = 53;
  spec.hidden = 32;
  spec.intermediate = 40;
  spec.layers = 2;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 8;
  spec.max_positions = 256;
  spec.tied_embeddings = tied;
  return spec;
}

inline plan::ModelSpec ThreeLayers(plan::ModelSpec spec) {
  spec.layers = 3;
  return spec;
}

// Every optional part at once.
inline plan::ModelSpec FullSpec() {
  plan::ModelSpec spec = SmallSpec(false);
  spec.attention_bias = true;
  spec.output_bias = true;
  spec.mlp_bias = true;
  spec.head_dim = 12;  // heads x head_dim is not hidden
  spec.rope_scaling = plan::RopeScaling{.original_max_positions = 16};
  return spec;
}

// Matrices of deviation 0.2, norms around one, biases around zero; padding zero.
inline MemoryUnitSource RandomWeights(const std::vector<plan::UnitSpec>& units, DType dtype,
                                      uint64_t seed) {
  return *MemoryUnitSource::Load(units, dtype, [&](int index, int64_t, std::span<float> out) {
    Random random(seed, static_cast<uint64_t>(index));
    for (const plan::TensorSpec& tensor : units[static_cast<size_t>(index)].tensors) {
      const double mean = tensor.name.ends_with("norm.weight") ? 1.0 : 0.0;
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

}  // namespace shoal::worker::testing_model
