#include "core/model/huggingface/hf_rotary.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace shoal::formats {
namespace {

using plan::Rope;
using plan::RopeScaling;
using plan::RopeType;

// What the keys of a kind of layers are read with.
struct Model {
  const plan::Family& family;
  const JsonObject& config;
  int64_t max_positions;
  int64_t head_dim;
};

// Of each head those that turn; 0: all.
absl::StatusOr<int64_t> ParseDims(const JsonObject& object, const Model& model, int64_t otherwise) {
  SHOAL_ASSIGN_OR_RETURN(const double partial, object.NumberOr("partial_rotary_factor", -1));
  if (partial == -1) {
    return otherwise;
  }
  if (!model.family.partial_rotary_key && partial != 1) {
    return InvalidArgument("{}: {} is not supported for {}; 1 is",
                           object.At("partial_rotary_factor"), partial, model.family.model_type);
  }
  if (!(partial > 0 && partial <= 1)) {
    return InvalidArgument("{} is {}, must be above 0 and at most 1",
                           object.At("partial_rotary_factor"), partial);
  }
  const auto dims = static_cast<int64_t>(static_cast<double>(model.head_dim) * partial);
  if (dims == 0 || dims % 2 != 0) {
    return InvalidArgument("{}: {} turns {} of {} dimensions; pairs turn",
                           object.At("partial_rotary_factor"), partial, dims, model.head_dim);
  }
  return dims == model.head_dim ? 0 : dims;
}

absl::StatusOr<RopeScaling> ParseLlama3(const JsonObject& rope) {
  RopeScaling scaling;
  SHOAL_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.low_frequency_factor, rope.Number("low_freq_factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.high_frequency_factor, rope.Number("high_freq_factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.original_max_positions,
                         rope.Integer("original_max_position_embeddings"));
  return scaling;
}

// Null and 0 are as if the key were absent.
absl::StatusOr<double> NumberOrIfZero(const JsonObject& object, const char* key, double otherwise) {
  SHOAL_ASSIGN_OR_RETURN(const double number, object.NumberOr(key, 0));
  return number == 0 ? otherwise : number;
}

// As the library computes it where attention_factor is absent.
absl::StatusOr<double> YarnAttentionFactor(const JsonObject& rope, double factor) {
  const auto scaled = [factor](double by) {
    return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1.0;
  };
  SHOAL_ASSIGN_OR_RETURN(const double mscale, rope.NumberOr("mscale", 0));
  SHOAL_ASSIGN_OR_RETURN(const double mscale_all, rope.NumberOr("mscale_all_dim", 0));
  return mscale != 0 && mscale_all != 0 ? scaled(mscale) / scaled(mscale_all) : scaled(1);
}

absl::StatusOr<RopeScaling> ParseYarn(const JsonObject& rope, int64_t max_positions) {
  RopeScaling scaling{.type = RopeType::kYarn};
  SHOAL_ASSIGN_OR_RETURN(scaling.original_max_positions,
                         rope.IntegerOr("original_max_position_embeddings", max_positions));
  SHOAL_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.beta_fast, NumberOrIfZero(rope, "beta_fast", scaling.beta_fast));
  SHOAL_ASSIGN_OR_RETURN(scaling.beta_slow, NumberOrIfZero(rope, "beta_slow", scaling.beta_slow));
  SHOAL_ASSIGN_OR_RETURN(scaling.truncate, rope.BoolOr("truncate", scaling.truncate));
  SHOAL_ASSIGN_OR_RETURN(const double computed, YarnAttentionFactor(rope, scaling.factor));
  SHOAL_ASSIGN_OR_RETURN(scaling.attention_factor, rope.NumberOr("attention_factor", computed));
  return scaling;
}

absl::StatusOr<std::vector<double>> ParseDivisors(const JsonObject& rope, const char* key) {
  SHOAL_ASSIGN_OR_RETURN(const Json* list, rope.Array(key));
  std::vector<double> divisors;
  for (const Json& each : *list) {
    if (!each.is_number()) {
      return InvalidArgument("{} has what is no number", rope.At(key));
    }
    divisors.push_back(each.get<double>());
  }
  return divisors;
}

// As the library computes it where factor is absent.
double LongRopeFactor(const RopeScaling& scaling, int64_t max_positions) {
  return static_cast<double>(max_positions) / static_cast<double>(scaling.original_max_positions);
}

// The same, for attention_factor.
double LongRopeAttentionFactor(const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_positions);
  return scaling.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(scaling.factor) / std::log(original));
}

absl::StatusOr<RopeScaling> ParseLongRope(const JsonObject& rope, const Model& model) {
  RopeScaling scaling{.type = RopeType::kLongRope};
  // As in the library, a key of that name within rope_parameters does not count.
  SHOAL_ASSIGN_OR_RETURN(scaling.original_max_positions,
                         model.config.IntegerOr("original_max_position_embeddings",
                                                model.family.defaults.original_max_positions));
  SHOAL_ASSIGN_OR_RETURN(scaling.factor,
                         rope.NumberOr("factor", LongRopeFactor(scaling, model.max_positions)));
  SHOAL_ASSIGN_OR_RETURN(scaling.attention_factor,
                         rope.NumberOr("attention_factor", LongRopeAttentionFactor(scaling)));
  SHOAL_ASSIGN_OR_RETURN(scaling.short_divisors, ParseDivisors(rope, "short_factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.long_divisors, ParseDivisors(rope, "long_factor"));
  return scaling;
}

absl::StatusOr<std::optional<RopeScaling>> ParseScaling(const JsonObject& rope,
                                                        const Model& model) {
  const char* const key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  SHOAL_ASSIGN_OR_RETURN(const std::string type, rope.StringOr(key, "default"));
  if (type == "default") {
    return std::nullopt;
  }
  if (model.family.is_longrope) {
    if (type == "longrope" || type == "su" || type == "yarn") {
      return ParseLongRope(rope, model);
    }
    return InvalidArgument("{}: '{}' is not supported for {}; default, longrope are", rope.At(key),
                           type, model.family.model_type);
  }
  if (type == "linear") {
    RopeScaling scaling{.type = RopeType::kLinear};
    SHOAL_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
    return scaling;
  }
  if (type == "llama3") {
    return ParseLlama3(rope);
  }
  if (type == "yarn") {
    return ParseYarn(rope, model.max_positions);
  }
  return InvalidArgument("{}: '{}' is not supported; default, linear, llama3, yarn are",
                         rope.At(key), type);
}

// `rope` is rope_scaling, or rope_parameters (which has rope_theta too).
absl::StatusOr<Rope> ParseRope(const JsonObject& rope, const Rope& otherwise, const Model& model) {
  Rope result;
  SHOAL_ASSIGN_OR_RETURN(result.theta, rope.NumberOr("rope_theta", otherwise.theta));
  SHOAL_ASSIGN_OR_RETURN(result.dims, ParseDims(rope, model, otherwise.dims));
  SHOAL_ASSIGN_OR_RETURN(result.scaling, ParseScaling(rope, model));
  return result;
}

// That of a kind of layers in rope_parameters that say each by itself.
absl::StatusOr<Rope> ParseRopeOf(const JsonObject& parameters, const char* type,
                                 const Rope& otherwise, const Model& model) {
  if (!parameters.json().contains(type)) {
    return otherwise;
  }
  if (parameters.Find(type) == nullptr) {
    return InvalidArgument("{} is null: rotary embedding of these layers is missing",
                           parameters.At(type));
  }
  SHOAL_ASSIGN_OR_RETURN(const JsonObject rope, parameters.Object(type));
  return ParseRope(rope, otherwise, model);
}

// Three keys are all that transformers 4 takes: others only where they say something of their own.
nlohmann::ordered_json LongRopeToJson(const RopeScaling& scaling, int64_t max_positions) {
  nlohmann::ordered_json json = {{"type", "longrope"},
                                 {"short_factor", scaling.short_divisors},
                                 {"long_factor", scaling.long_divisors}};
  if (scaling.factor != LongRopeFactor(scaling, max_positions)) {
    json["factor"] = scaling.factor;
  }
  if (scaling.attention_factor != LongRopeAttentionFactor(scaling)) {
    json["attention_factor"] = scaling.attention_factor;
  }
  return json;
}

nlohmann::ordered_json ToJson(const RopeScaling& scaling, int64_t max_positions) {
  switch (scaling.type) {
    case RopeType::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_frequency_factor},
              {"high_freq_factor", scaling.high_frequency_factor},
              {"original_max_position_embeddings", scaling.original_max_positions}};
    case RopeType::kLinear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeType::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", scaling.factor},
              {"original_max_position_embeddings", scaling.original_max_positions},
              {"beta_fast", scaling.beta_fast},
              {"beta_slow", scaling.beta_slow},
              {"truncate", scaling.truncate},
              {"attention_factor", scaling.attention_factor}};
    case RopeType::kLongRope:
      return LongRopeToJson(scaling, max_positions);
  }
  __builtin_unreachable();
}

}  // namespace

absl::StatusOr<Ropes> ParseRotary(const JsonObject& config, const plan::Family& family,
                                  int64_t max_positions, int64_t head_dim) {
  const Model model{family, config, max_positions, head_dim};
  SHOAL_ASSIGN_OR_RETURN(const int64_t dims, ParseDims(config, model, 0));
  SHOAL_ASSIGN_OR_RETURN(const double theta,
                         config.NumberOr("rope_theta", family.defaults.rope_theta));
  double local_theta = theta;
  if (family.defaults.local_rope_theta > 0) {
    SHOAL_ASSIGN_OR_RETURN(
        local_theta, config.NumberOr("rope_local_base_freq", family.defaults.local_rope_theta));
  }
  Ropes ropes{.full = {.theta = theta, .dims = dims},
              .sliding = {.theta = local_theta, .dims = dims}};
  if (config.Find("rope_parameters") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject parameters, config.Object("rope_parameters"));
    if (parameters.json().contains(kFullAttention) ||
        parameters.json().contains(kSlidingAttention)) {
      SHOAL_ASSIGN_OR_RETURN(ropes.full,
                             ParseRopeOf(parameters, kFullAttention, ropes.full, model));
      SHOAL_ASSIGN_OR_RETURN(ropes.sliding,
                             ParseRopeOf(parameters, kSlidingAttention, ropes.sliding, model));
    } else {
      SHOAL_ASSIGN_OR_RETURN(ropes.full, ParseRope(parameters, ropes.full, model));
      ropes.sliding = ropes.full;
      if (family.scales_full_layers_only &&
          (ropes.full.scaling || family.defaults.local_rope_theta > 0)) {
        return InvalidArgument("{} of {} are by kind of layer: {}, {}",
                               config.At("rope_parameters"), family.model_type, kFullAttention,
                               kSlidingAttention);
      }
    }
  } else if (config.Find("rope_scaling") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject scaling, config.Object("rope_scaling"));
    SHOAL_ASSIGN_OR_RETURN(ropes.full, ParseRope(scaling, ropes.full, model));
    if (!family.scales_full_layers_only) {
      ropes.sliding = ropes.full;
    }
  }
  return ropes;
}

void AddRotary(const plan::ModelSpec& spec, const plan::Family& family,
               nlohmann::ordered_json& config) {
  const plan::Attention& first = spec.attention();
  bool same = true;  // rope_theta and rope_scaling say it of all layers that turn
  for (const plan::BlockKind& kind : spec.kinds) {
    Rope rope = kind.attention.rope;
    rope.turns = first.rope.turns;
    same &= rope == first.rope && !(family.scales_full_layers_only && kind.attention.window > 0);
  }
  if (same && first.rope.scaling) {
    config["rope_scaling"] = ToJson(*first.rope.scaling, spec.max_positions);
    if (family.defaults.original_max_positions > 0) {
      config["original_max_position_embeddings"] = first.rope.scaling->original_max_positions;
    }
  }
  if (family.partial_rotary_key) {
    config["partial_rotary_factor"] =
        static_cast<double>(first.rotary_dims()) / static_cast<double>(first.head_dim);
  }
  for (const plan::BlockKind& kind : spec.kinds) {
    if (!same) {
      const Rope& rope = kind.attention.rope;
      auto& json =
          config["rope_parameters"][kind.attention.window > 0 ? kSlidingAttention : kFullAttention];
      json = rope.scaling ? ToJson(*rope.scaling, spec.max_positions)
                          : nlohmann::ordered_json({{"rope_type", "default"}});
      json["rope_theta"] = rope.theta;
      // What transformers 4 looks at.
      if (family.defaults.local_rope_theta > 0) {
        config[kind.attention.window > 0 ? "rope_local_base_freq" : "rope_theta"] = rope.theta;
      }
      if (family.scales_full_layers_only && kind.attention.window == 0 && rope.scaling) {
        config["rope_scaling"] = ToJson(*rope.scaling, spec.max_positions);
      }
    }
  }
}

}  // namespace shoal::formats
