#include "core/model/family.h"

namespace shoal::plan {

extern const Family kQwen2;
constinit const Family kQwen2 = {.model_type = "qwen2",
                                 .architecture = "Qwen2ForCausalLM",
                                 .defaults = {.max_positions = 32768, .window = 4096},
                                 .qkv_bias = QkvBias::kAlways,
                                 .window = WindowKeys::kUseSlidingWindow};

}  // namespace shoal::plan
