#include "core/model/family.h"

namespace shoal::plan {

extern const Family kGemma3;
constinit const Family kGemma3 = {.model_type = "gemma3_text",
                                  .architecture = "Gemma3ForCausalLM",
                                  .composite_architecture = "Gemma3ForConditionalGeneration",
                                  .defaults = {.vocabulary = 262208,
                                               .heads = 8,
                                               .max_positions = 131072,
                                               .kv_heads = 4,
                                               .head_dim = 256,
                                               .rope_theta = 1e6,
                                               .local_rope_theta = 1e4,
                                               .window = 4096,
                                               .tied_embeddings = true,
                                               .query_scalar = 256},
                                  .norms = Norms::kSandwich,
                                  .qk_norm = QkNorm::kHead,
                                  .gate = Gate::kGeluTanh,
                                  .gate_key = "hidden_activation",
                                  .norm_offset = 1,
                                  .scaled_embeddings = true,
                                  .logits_softcap_key = true,
                                  .window = WindowKeys::kSlidingWindow,
                                  .full_layer_every = 6,
                                  .full_layer_key = "sliding_window_pattern",
                                  .scales_full_layers_only = true,
                                  .names = {{Role::kMlpNorm, "pre_feedforward_layernorm.weight"}}};

}  // namespace shoal::plan
