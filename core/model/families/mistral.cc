#include "core/model/family.h"

namespace shoal::plan {

extern const Family kMistral;
constinit const Family kMistral = {
    .model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .defaults = {.max_positions = 131072, .kv_heads = 8, .window = 4096},
    .qkv_bias = QkvBias::kNever,
    .window = WindowKeys::kSlidingWindow};

}  // namespace shoal::plan
