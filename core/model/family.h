// What a model family is: a row of a table, read by one block implementation, one reader of
// config.json and one builder of units. core/model/families has one file a family, which holds no
// arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/model/model_spec.h"

namespace shoal::plan {

// Who says whether q, k and v have a bias.
enum class QkvBias { kNever, kByKey, kAlways };  // kByKey: attention_bias, which puts one on o too

// Who says whether attention looks at a window only: nobody, as there is none; sliding_window, in
// all layers (all but some: full_layer_every); or sliding_window where use_sliding_window is true,
// in layers from max_window_layers on. Where some layers may have none, layer_types says which.
enum class WindowKeys { kNone, kSlidingWindow, kUseSlidingWindow };

struct NameRule {
  Role role = Role::kEmbedding;
  std::string_view name;  // without the layer's prefix
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // config.json's architectures
  // Of models that have it as one part, which text_config describes, beside images and the like.
  std::string_view composite_architecture = {};
  // The library's own defaults, for keys that config.json may leave out.
  struct Defaults {
    int64_t vocabulary = 0;  // 0: vocab_size must be there; heads likewise
    int64_t heads = 0;
    int64_t max_positions = 0;
    int64_t original_max_positions = 0;  // beside max_position_embeddings; 0: no key of the family
    int64_t kv_heads = 0;                // 0: as heads
    int64_t head_dim = 0;                // 0: hidden / heads
    double norm_epsilon = 1e-6;
    double rope_theta = 10000.0;
    double local_rope_theta =
        0;  // of layers that have a window, rope_local_base_freq; 0: as others
    int64_t window = 0;
    bool tied_embeddings = false;
    double query_scalar = 0;   // 0: query_pre_attn_scalar is no key of the family
    double score_softcap = 0;  // 0: none
    double logits_softcap = 0;
  } defaults;
  Norms norms = Norms::kPre;
  QkvBias qkv_bias = QkvBias::kByKey;
  QkNorm qk_norm = QkNorm::kNone;
  Gate gate = Gate::kSilu;
  std::string_view gate_key = "hidden_act";
  int64_t norm_offset = 0;
  bool scaled_embeddings = false;
  bool score_softcap_key = false;   // attn_logit_softcapping; null: none
  bool logits_softcap_key = false;  // final_logit_softcapping; null: none
  bool mlp_bias_key = false;        // mlp_bias
  WindowKeys window = WindowKeys::kNone;
  int64_t full_layer_every = 0;  // without layer_types, each such layer has no window; 0: none
  std::string_view full_layer_key = {};  // that says otherwise
  // Whether rotary embedding is scaled by longrope, which has other names too, or else by the ways
  // that all others have.
  bool is_longrope = false;
  // Each such layer has no rotary embedding, where neither no_rope_layer_interval nor
  // no_rope_layers says which; 0: no keys of the family.
  int64_t no_rope_layer_interval = 0;
  bool partial_rotary_key = false;       // partial_rotary_factor
  bool scales_full_layers_only = false;  // rope_scaling is not for layers that have a window
  NameRule names[8] = {};  // where they are not the common ones; empty entries mean nothing
  // Tensors of files that hold several of ours, one after the other.
  NameRule joined[8] = {};
};

// All that there are, by model_type.
std::span<const Family* const> Families();

// Returns null if there is none.
const Family* FindFamily(std::string_view model_type);

// CHECK-fails for a spec that Validate refuses.
const Family& FamilyOf(const ModelSpec& spec);

// "model.layers.3.self_attn.q_proj.weight"; `layer` counts for tensors of blocks only.
std::string TensorName(const Family& family, Role role, int64_t layer);
// Of the tensor in files which is that one, or holds it.
std::string StoredName(const Family& family, Role role, int64_t layer);

}  // namespace shoal::plan
