#include "core/model/family.h"

namespace shoal::plan {

extern const Family kLlama;
constinit const Family kLlama = {.model_type = "llama",
                                 .architecture = "LlamaForCausalLM",
                                 .defaults = {.max_positions = 2048},
                                 .mlp_bias_key = true};

}  // namespace shoal::plan
