#include "core/model/family.h"

namespace shoal::plan {

extern const Family kSmolLm3;
constinit const Family kSmolLm3 = {
    .model_type = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .defaults = {.max_positions = 32768, .kv_heads = 4, .rope_theta = 2e6, .tied_embeddings = true},
    .mlp_bias_key = true,
    .no_rope_layer_interval = 4};

}  // namespace shoal::plan
