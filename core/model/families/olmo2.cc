#include "core/model/family.h"

namespace shoal::plan {

extern const Family kOlmo2;
constinit const Family kOlmo2 = {.model_type = "olmo2",
                                 .architecture = "Olmo2ForCausalLM",
                                 .defaults = {.max_positions = 2048, .norm_epsilon = 1e-5},
                                 .norms = Norms::kPost,
                                 .qk_norm = QkNorm::kWhole};

}  // namespace shoal::plan
