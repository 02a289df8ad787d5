#include "bench/on_demand/stand_in.h"

#include "nlohmann/json.hpp"

namespace shoal::bench {
namespace {

// The machine that emulates many devices spends its time on messages, so blocks are few. A worker
// that has fetched ahead is that far ahead of the others where all meet at layers: of these blocks
// one, which is about as much of a microbatch as a few of the shape's.
int64_t LayersFor(int64_t samples_per_device) { return samples_per_device > 8 ? 4 : 7; }

}  // namespace

std::string StandInConfig(const plan::ModelSpec& shape, int64_t samples_per_device) {
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"vocab_size", kStandInVocabulary},
                                 {"hidden_size", 16},
                                 {"intermediate_size", 32},
                                 {"num_hidden_layers", LayersFor(samples_per_device)},
                                 {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1},
                                 {"max_position_embeddings", 131072},
                                 {"rms_norm_eps", 1e-5},
                                 {"rope_theta", 10000.0},
                                 {"hidden_act", "silu"},
                                 {"attention_bias", false},
                                 {"mlp_bias", false},
                                 {"tie_word_embeddings", shape.tied_embeddings}};
  return config.dump(2) + "\n";
}

}  // namespace shoal::bench
