#include "core/model/family.h"

namespace shoal::plan {

extern const Family kQwen3;
constinit const Family kQwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .defaults = {.max_positions = 32768, .head_dim = 128, .window = 4096},
    .qk_norm = QkNorm::kHead,
    .window = WindowKeys::kUseSlidingWindow};

}  // namespace shoal::plan
