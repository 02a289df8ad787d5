#include "bench/gpu/shapes_json.h"

#include "plan/model_spec.h"

namespace shoal::bench {

nlohmann::json ShapesJson() {
  nlohmann::json shapes;
  for (const std::string& name : plan::NamedShapes()) {
    const plan::ModelSpec spec = *plan::NamedShape(name);
    shapes[name] = {{"vocabulary", spec.vocabulary},
                    {"hidden", spec.hidden},
                    {"intermediate", spec.intermediate},
                    {"layers", spec.layers},
                    {"heads", spec.heads},
                    {"kv_heads", spec.kv_heads},
                    {"head_dim", spec.head_dim},
                    {"norm_epsilon", spec.norm_epsilon},
                    {"rope_theta", spec.rope_theta},
                    {"attention_bias", spec.attention_bias},
                    {"tied_embeddings", spec.tied_embeddings},
                    {"parameters", plan::ParameterCount(spec)}};
  }
  return shapes;
}

}  // namespace shoal::bench
