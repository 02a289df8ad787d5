#include "core/model/family.h"

namespace shoal::plan {

extern const Family kPhi3;
constinit const Family kPhi3 = {
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .defaults = {.max_positions = 4096, .original_max_positions = 4096, .norm_epsilon = 1e-5},
    .qkv_bias = QkvBias::kNever,
    .window = WindowKeys::kSlidingWindow,
    .is_longrope = true,
    .partial_rotary_key = true,
    .joined = {{Role::kQ, "self_attn.qkv_proj.weight"},
               {Role::kK, "self_attn.qkv_proj.weight"},
               {Role::kV, "self_attn.qkv_proj.weight"},
               {Role::kGate, "mlp.gate_up_proj.weight"},
               {Role::kUp, "mlp.gate_up_proj.weight"}}};

}  // namespace shoal::plan
