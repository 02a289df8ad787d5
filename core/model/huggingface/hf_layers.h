// What config.json says of single layers: windows of attention, which layers have them, and which
// have rotary embedding.
#pragma once

#include "absl/status/status.h"
#include "core/base/json/json.h"
#include "core/model/family.h"
#include "core/model/huggingface/hf_rotary.h"
#include "core/model/model_spec.h"

namespace shoal::formats {

// Sets kinds and kind_of_layer, given the first kind, which every layer has but for its window and
// its rotary embedding.
absl::Status ParseLayers(const JsonObject& config, const plan::Family& family, const Ropes& ropes,
                         plan::ModelSpec& spec);

// The inverse: adds those keys.
void AddLayers(const plan::ModelSpec& spec, const plan::Family& family,
               nlohmann::ordered_json& config);

}  // namespace shoal::formats
