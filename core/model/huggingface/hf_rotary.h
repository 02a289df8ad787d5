// What config.json says of rotary embedding: rope_theta, rope_scaling and rope_local_base_freq of
// transformers 4, or rope_parameters of 5, which wins.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/json/json.h"
#include "core/model/family.h"
#include "core/model/model_spec.h"

namespace shoal::formats {

// The layer types: those that see all tokens before, and those that have a window.
inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";

// Of the layers that see all tokens before, and of those that have a window.
struct Ropes {
  plan::Rope full;
  plan::Rope sliding;
};
absl::StatusOr<Ropes> ParseRotary(const JsonObject& config, const plan::Family& family,
                                  int64_t max_positions, int64_t head_dim);

// The inverse: adds those keys, given rope_theta of the first kind of layers.
void AddRotary(const plan::ModelSpec& spec, const plan::Family& family,
               nlohmann::ordered_json& config);

}  // namespace shoal::formats
