#include "core/model/family.h"

namespace shoal::plan {

extern const Family kGemma2;
constinit const Family kGemma2 = {.model_type = "gemma2",
                                  .architecture = "Gemma2ForCausalLM",
                                  .defaults = {.max_positions = 8192,
                                               .kv_heads = 4,
                                               .head_dim = 256,
                                               .window = 4096,
                                               .tied_embeddings = true,
                                               .query_scalar = 256,
                                               .score_softcap = 50,
                                               .logits_softcap = 30},
                                  .norms = Norms::kSandwich,
                                  .gate = Gate::kGeluTanh,
                                  .gate_key = "hidden_activation",
                                  .norm_offset = 1,
                                  .scaled_embeddings = true,
                                  .score_softcap_key = true,
                                  .logits_softcap_key = true,
                                  .window = WindowKeys::kSlidingWindow,
                                  .full_layer_every = 2,
                                  .names = {{Role::kMlpNorm, "pre_feedforward_layernorm.weight"}}};

}  // namespace shoal::plan
