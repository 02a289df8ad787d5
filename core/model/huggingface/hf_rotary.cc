#include "core/model/huggingface/hf_rotary.h"

#include <cmath>
#include <string>

#include "core/base/status.h"

namespace shoal::formats {
namespace {

using plan::Rope;
using plan::RopeScaling;
using plan::RopeType;

absl::Status RefusePartialRotary(const JsonObject& object) {
  SHOAL_ASSIGN_OR_RETURN(const double partial, object.NumberOr("partial_rotary_factor", 1));
  return partial == 1 ? absl::OkStatus()
                      : InvalidArgument("{}: partial_rotary_factor {} is not supported; 1 is",
                                        object.where(), partial);
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

// `rope` is rope_scaling, or rope_parameters (which has rope_theta too).
absl::StatusOr<Rope> ParseRope(const JsonObject& rope, double theta, int64_t max_positions) {
  Rope result;
  SHOAL_ASSIGN_OR_RETURN(result.theta, rope.NumberOr("rope_theta", theta));
  SHOAL_ASSIGN_OR_RETURN(std::string type, rope.StringOr("type", "default"));
  SHOAL_ASSIGN_OR_RETURN(type, rope.StringOr("rope_type", type));
  SHOAL_RETURN_IF_ERROR(RefusePartialRotary(rope));
  if (type == "linear") {
    RopeScaling scaling{.type = RopeType::kLinear};
    SHOAL_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
    result.scaling = scaling;
  } else if (type == "llama3") {
    SHOAL_ASSIGN_OR_RETURN(result.scaling, ParseLlama3(rope));
  } else if (type == "yarn") {
    SHOAL_ASSIGN_OR_RETURN(result.scaling, ParseYarn(rope, max_positions));
  } else if (type != "default") {
    return InvalidArgument("{}: rope_type '{}' is not supported; default, linear, llama3, yarn are",
                           rope.where(), type);
  }
  return result;
}

// That of a kind of layers in rope_parameters that say each by itself.
absl::StatusOr<Rope> ParseRopeOf(const JsonObject& parameters, const char* type, double theta,
                                 int64_t max_positions) {
  if (!parameters.json().contains(type)) {
    return Rope{.theta = theta};
  }
  if (parameters.Find(type) == nullptr) {
    return InvalidArgument("{}: {} is null: layers without rotary embedding are not supported",
                           parameters.where(), type);
  }
  SHOAL_ASSIGN_OR_RETURN(const JsonObject rope, parameters.Object(type));
  return ParseRope(rope, theta, max_positions);
}

nlohmann::ordered_json ToJson(const RopeScaling& scaling) {
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
  }
  __builtin_unreachable();
}

}  // namespace

absl::StatusOr<Ropes> ParseRotary(const JsonObject& config, const plan::Family& family,
                                  int64_t max_positions) {
  SHOAL_RETURN_IF_ERROR(RefusePartialRotary(config));
  SHOAL_ASSIGN_OR_RETURN(const double theta,
                         config.NumberOr("rope_theta", family.defaults.rope_theta));
  double local_theta = theta;
  if (family.defaults.local_rope_theta > 0) {
    SHOAL_ASSIGN_OR_RETURN(
        local_theta, config.NumberOr("rope_local_base_freq", family.defaults.local_rope_theta));
  }
  Ropes ropes{.full = {.theta = theta}, .sliding = {.theta = local_theta}};
  if (config.Find("rope_parameters") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject parameters, config.Object("rope_parameters"));
    if (parameters.json().contains(kFullAttention) ||
        parameters.json().contains(kSlidingAttention)) {
      SHOAL_ASSIGN_OR_RETURN(ropes.full,
                             ParseRopeOf(parameters, kFullAttention, theta, max_positions));
      SHOAL_ASSIGN_OR_RETURN(
          ropes.sliding, ParseRopeOf(parameters, kSlidingAttention, local_theta, max_positions));
    } else {
      SHOAL_ASSIGN_OR_RETURN(ropes.full, ParseRope(parameters, theta, max_positions));
      ropes.sliding = ropes.full;
      if (family.scales_full_layers_only &&
          (ropes.full.scaling || family.defaults.local_rope_theta > 0)) {
        return InvalidArgument("{}: rope_parameters of {} are by kind of layer: {}, {}",
                               config.where(), family.model_type, kFullAttention,
                               kSlidingAttention);
      }
    }
  } else if (config.Find("rope_scaling") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject scaling, config.Object("rope_scaling"));
    SHOAL_ASSIGN_OR_RETURN(ropes.full, ParseRope(scaling, theta, max_positions));
    if (!family.scales_full_layers_only) {
      ropes.sliding = ropes.full;
    }
  }
  if (!family.scales_rotary && (ropes.full.scaling || ropes.sliding.scaling)) {
    return InvalidArgument("{}: a rotary embedding that is scaled is not supported for {}",
                           config.where(), family.model_type);
  }
  return ropes;
}

void AddRotary(const plan::ModelSpec& spec, const plan::Family& family,
               nlohmann::ordered_json& config) {
  const plan::Attention& first = spec.attention();
  // Whether rope_scaling says it of all layers.
  bool same = !(family.scales_full_layers_only && first.window > 0);
  for (const plan::BlockKind& kind : spec.kinds) {
    same &= kind.attention.rope == first.rope;
  }
  if (same && first.rope.scaling) {
    config["rope_scaling"] = ToJson(*first.rope.scaling);
  }
  for (const plan::BlockKind& kind : spec.kinds) {
    if (!same) {
      const Rope& rope = kind.attention.rope;
      auto& json =
          config["rope_parameters"][kind.attention.window > 0 ? kSlidingAttention : kFullAttention];
      json =
          rope.scaling ? ToJson(*rope.scaling) : nlohmann::ordered_json({{"rope_type", "default"}});
      json["rope_theta"] = rope.theta;
      // What transformers 4 looks at.
      if (family.defaults.local_rope_theta > 0) {
        config[kind.attention.window > 0 ? "rope_local_base_freq" : "rope_theta"] = rope.theta;
      }
      if (family.scales_full_layers_only && kind.attention.window == 0 && rope.scaling) {
        config["rope_scaling"] = ToJson(*rope.scaling);
      }
    }
  }
}

}  // namespace shoal::formats
