#include "bench/gpu_check/shapes_json.h"

#include "bench/gpu_check/parts/kernel_cases.h"
#include "core/model/model_spec.h"

namespace shoal::bench {
namespace {

using nlohmann::json;

json ShapeJson(const plan::ModelSpec& spec) {
  return {{"vocabulary", spec.vocabulary},
          {"hidden", spec.hidden},
          {"intermediate", spec.mlp().intermediate},
          {"layers", spec.layers},
          {"heads", spec.attention().heads},
          {"kv_heads", spec.attention().kv_heads},
          {"head_dim", spec.attention().head_dim},
          {"norm_epsilon", spec.norm_epsilon},
          {"rope_theta", spec.attention().rope.theta},
          {"attention_bias", spec.attention().qkv_bias},
          {"tied_embeddings", spec.tied_embeddings},
          {"parameters", plan::ParameterCount(spec)}};
}

}  // namespace

json ShapesJson(const PartSizes& sizes) {
  json all = {{"cases", json::array()}, {"attention", json::array()}};
  for (const TrainCase& c : sizes.train) {
    if (const absl::StatusOr<plan::ModelSpec> spec = c.Spec(); spec.ok()) {
      all["cases"].push_back({{"case", c.Name()},
                              {"shape", ShapeJson(*spec)},
                              {"tokens", c.tokens},
                              {"sequences", c.sequences},
                              {"recompute", plan::Name(c.recompute)}});
    }
  }
  for (const AttentionSize& size : AttentionSizes(sizes)) {
    all["attention"].push_back({{"case", size.Name()},
                                {"heads", size.shape.heads},
                                {"kv_heads", size.shape.kv_heads},
                                {"head_dim", size.shape.head_dim},
                                {"tokens", size.tokens},
                                {"sequences", size.sequences}});
  }
  return all;
}

}  // namespace shoal::bench
