#include "core/model/huggingface/hf_layers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace shoal::formats {
namespace {

using plan::Family;
using plan::ModelSpec;
using plan::WindowKeys;

// Keys that a query sees in layers that have a window; 0: none.
absl::StatusOr<int64_t> ParseWindow(const JsonObject& config, const Family& family) {
  if (family.window != WindowKeys::kSlidingWindow) {
    const bool by_key = family.window == WindowKeys::kUseSlidingWindow;
    SHOAL_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", !by_key));
    if (!use_window) {
      return 0;
    }
  }
  if (family.window == WindowKeys::kNone) {
    return config.Find("sliding_window") == nullptr
               ? absl::StatusOr<int64_t>(0)
               : InvalidArgument("{} is not supported for {}", config.At("sliding_window"),
                                 family.model_type);
  }
  if (!config.json().contains("sliding_window")) {
    return family.defaults.window;
  }
  if (config.Find("sliding_window") == nullptr) {
    return 0;
  }
  return config.Integer("sliding_window", 1);
}

// Whether each layer has the window.
absl::StatusOr<std::vector<bool>> ParseTypes(const JsonObject& config, int64_t layers) {
  SHOAL_ASSIGN_OR_RETURN(const Json* types, config.Array("layer_types"));
  if (static_cast<int64_t>(types->size()) != layers) {
    return InvalidArgument("{} has {} layers; num_hidden_layers says {}", config.At("layer_types"),
                           types->size(), layers);
  }
  std::vector<bool> sliding;
  for (const Json& type : *types) {
    if (type != kFullAttention && type != kSlidingAttention) {
      const std::string shown = type.is_string() ? type.get<std::string>() : type.type_name();
      return InvalidArgument("{}: '{}' (layer {}) is not supported; {}, {} are",
                             config.At("layer_types"), shown.substr(0, 60), sliding.size(),
                             kFullAttention, kSlidingAttention);
    }
    sliding.push_back(type == kSlidingAttention);
  }
  return sliding;
}

absl::StatusOr<std::vector<bool>> SlidingLayers(const JsonObject& config, const Family& family,
                                                int64_t layers, int64_t window) {
  std::vector<bool> sliding(static_cast<size_t>(layers), window > 0);
  if (config.Find("layer_types") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<bool> types, ParseTypes(config, layers));
    const bool in_all = family.window == WindowKeys::kSlidingWindow && family.full_layer_every == 0;
    if (in_all && types != sliding) {
      return InvalidArgument("{} contradicts sliding_window, which is of all layers",
                             config.At("layer_types"));
    }
    return types;
  }
  int64_t full_every = family.full_layer_every;
  if (!family.full_layer_key.empty() && config.Find(family.full_layer_key) != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(full_every, config.Integer(family.full_layer_key, 1));
  }
  for (int64_t layer = 0; full_every > 0 && layer < layers; ++layer) {
    if ((layer + 1) % full_every == 0) {
      sliding[static_cast<size_t>(layer)] = false;
    }
  }
  if (family.window == WindowKeys::kUseSlidingWindow) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t first, config.IntegerOr("max_window_layers", 28));
    std::fill_n(sliding.begin(), std::clamp<int64_t>(first, 0, layers), false);
  }
  return sliding;
}

// Whether queries and keys of each layer turn.
absl::StatusOr<std::vector<bool>> TurningLayers(const JsonObject& config, const Family& family,
                                                int64_t layers) {
  std::vector<bool> turning(static_cast<size_t>(layers), true);
  if (family.no_rope_layer_interval == 0) {
    return turning;
  }
  if (config.Find("no_rope_layers") == nullptr) {
    int64_t interval = family.no_rope_layer_interval;
    if (config.Find("no_rope_layer_interval") != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(interval, config.Integer("no_rope_layer_interval", 1, layers + 1));
    }
    for (int64_t layer = interval - 1; layer < layers; layer += interval) {
      turning[static_cast<size_t>(layer)] = false;
    }
    return turning;
  }
  SHOAL_ASSIGN_OR_RETURN(const Json* list, config.Array("no_rope_layers"));
  if (static_cast<int64_t>(list->size()) != layers) {
    return InvalidArgument("{} has {} layers; num_hidden_layers says {}",
                           config.At("no_rope_layers"), list->size(), layers);
  }
  for (size_t layer = 0; layer < turning.size(); ++layer) {
    const Json& turns = (*list)[layer];
    if (turns != 0 && turns != 1) {
      return InvalidArgument("{}: {} (layer {}) is not supported; 0, without, and 1, with, are",
                             config.At("no_rope_layers"), turns.dump().substr(0, 60), layer);
    }
    turning[layer] = turns == 1;
  }
  return turning;
}

}  // namespace

absl::Status ParseLayers(const JsonObject& config, const Family& family, const Ropes& ropes,
                         ModelSpec& spec) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t window, ParseWindow(config, family));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                         SlidingLayers(config, family, spec.layers, window));
  if (window == 0 && std::ranges::count(sliding, true) > 0) {
    return InvalidArgument("{} has {}, and no window is set", config.At("layer_types"),
                           kSlidingAttention);
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<bool> turning,
                         TurningLayers(config, family, spec.layers));
  const plan::BlockKind first = spec.kinds[0];
  spec.kinds.clear();  // in the order in which layers have them
  for (size_t layer = 0; layer < sliding.size(); ++layer) {
    plan::BlockKind kind = first;
    kind.attention.window = sliding[layer] ? window : 0;
    kind.attention.rope = sliding[layer] ? ropes.sliding : ropes.full;
    kind.attention.rope.turns = turning[layer];
    const auto same = std::ranges::find(spec.kinds, kind);
    spec.kind_of_layer.push_back(static_cast<uint8_t>(same - spec.kinds.begin()));
    if (same == spec.kinds.end()) {
      spec.kinds.push_back(std::move(kind));
    }
  }
  if (spec.kinds.size() == 1) {
    spec.kind_of_layer.clear();
  }
  return absl::OkStatus();
}

void AddLayers(const ModelSpec& spec, const Family& family, nlohmann::ordered_json& config) {
  for (int64_t layer = 0; family.no_rope_layer_interval > 0 && layer < spec.layers; ++layer) {
    config["no_rope_layers"].push_back(spec.block(layer).attention.rope.turns ? 1 : 0);
  }
  if (family.window == WindowKeys::kNone) {
    return;
  }
  int64_t window = 0;
  for (const plan::BlockKind& kind : spec.kinds) {
    window = std::max(window, kind.attention.window);
  }
  if (family.window == WindowKeys::kUseSlidingWindow) {
    config["use_sliding_window"] = window > 0;
  }
  if (window > 0) {
    config["sliding_window"] = window;
  } else if (family.window == WindowKeys::kSlidingWindow) {
    config["sliding_window"] = nullptr;
  }
  if (spec.kinds.size() > 1 || family.full_layer_every > 0 ||
      (window > 0 && family.window == WindowKeys::kUseSlidingWindow)) {
    for (int64_t layer = 0; layer < spec.layers; ++layer) {
      config["layer_types"].push_back(spec.block(layer).attention.window > 0 ? kSlidingAttention
                                                                             : kFullAttention);
    }
  }
}

}  // namespace shoal::formats
