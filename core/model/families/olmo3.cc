#include "core/model/family.h"

namespace shoal::plan {

extern const Family kOlmo3;
constinit const Family kOlmo3 = {.model_type = "olmo3",
                                 .architecture = "Olmo3ForCausalLM",
                                 .defaults = {.max_positions = 2048,
                                              .norm_epsilon = 1e-5,
                                              .rope_theta = 500000.0,
                                              .window = 4096},
                                 .norms = Norms::kPost,
                                 .qk_norm = QkNorm::kWhole,
                                 .window = WindowKeys::kSlidingWindow,
                                 .full_layer_every = 4,
                                 .scales_full_layers_only = true};

}  // namespace shoal::plan
