// config.json <-> ModelSpec. Everything that would change the mathematics and is not implemented is
// refused by name; keys without effect here (dropout, cache settings, ...) are ignored.
#include <string>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/json/json_fields.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {
namespace {

using nlohmann::json;
using plan::ModelSpec;
using plan::RopeScaling;

constexpr const char* kLlama = "LlamaForCausalLM";
constexpr int64_t kMaxConfigBytes = 16 * kMiB;
constexpr const char* kQwen2 = "Qwen2ForCausalLM";

absl::StatusOr<std::string> ParseArchitecture(const JsonFields& fields, const std::string& file) {
  std::string architecture;
  if (const json* list = fields.Find("architectures"); list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      return InvalidArgument("{}: architectures is not a list of one name", file);
    }
    architecture = list->front().get<std::string>();
  } else {
    std::string model_type;
    SHOAL_RETURN_IF_ERROR(fields.Require("model_type"));
    SHOAL_RETURN_IF_ERROR(fields.String("model_type", model_type));
    architecture = model_type == "llama" ? kLlama : model_type == "qwen2" ? kQwen2 : model_type;
  }
  if (architecture != kLlama && architecture != kQwen2) {
    return InvalidArgument("{}: architecture '{}' is not supported; {} and {} are", file,
                           architecture, kLlama, kQwen2);
  }
  return architecture;
}

// `value` is rope_scaling, or what transformers 5 calls rope_parameters (which has rope_theta too).
absl::Status ParseRope(const json& value, const std::string& file, const std::string& key,
                       ModelSpec& spec) {
  if (!value.is_object()) {
    return InvalidArgument("{}: {} is not an object", file, key);
  }
  const JsonFields fields(value, file + ": " + key);
  SHOAL_RETURN_IF_ERROR(fields.Number("rope_theta", spec.rope_theta));
  std::string type = "default";
  SHOAL_RETURN_IF_ERROR(fields.String("type", type));
  SHOAL_RETURN_IF_ERROR(fields.String("rope_type", type));
  double partial = 1.0;
  SHOAL_RETURN_IF_ERROR(fields.Number("partial_rotary_factor", partial));
  if (partial != 1.0) {
    return InvalidArgument("{}: {}: partial_rotary_factor {} is not supported", file, key, partial);
  }
  if (type == "default") {
    return absl::OkStatus();
  }
  if (type != "llama3") {
    return InvalidArgument("{}: {}: rope type '{}' is not supported; default and llama3 are", file,
                           key, type);
  }
  for (const char* needed :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    SHOAL_RETURN_IF_ERROR(fields.Require(needed));
  }
  RopeScaling scaling;
  SHOAL_RETURN_IF_ERROR(fields.Number("factor", scaling.factor));
  SHOAL_RETURN_IF_ERROR(fields.Number("low_freq_factor", scaling.low_frequency_factor));
  SHOAL_RETURN_IF_ERROR(fields.Number("high_freq_factor", scaling.high_frequency_factor));
  SHOAL_RETURN_IF_ERROR(
      fields.Integer("original_max_position_embeddings", scaling.original_max_positions));
  spec.rope_scaling = scaling;
  return absl::OkStatus();
}

absl::Status RefuseWindows(const JsonFields& fields, const std::string& file, bool qwen2) {
  bool use_window = !qwen2;  // Qwen2 names a window size that it uses only if another key says so
  SHOAL_RETURN_IF_ERROR(fields.Boolean("use_sliding_window", use_window));
  if (use_window && (qwen2 || fields.Find("sliding_window") != nullptr)) {
    return InvalidArgument(
        "{}: sliding-window attention (use_sliding_window, sliding_window) is not supported", file);
  }
  if (const json* types = fields.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) {
      return InvalidArgument("{}: layer_types is not a list", file);
    }
    for (const json& type : *types) {
      if (type != "full_attention") {
        return InvalidArgument("{}: layer_types: only full_attention is supported, found {}", file,
                               type.dump(-1, ' ', true, json::error_handler_t::replace));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseUnsupported(const JsonFields& fields, const std::string& file, bool qwen2) {
  std::string activation = "silu";
  SHOAL_RETURN_IF_ERROR(fields.String("hidden_act", activation));
  if (activation != "silu") {
    return InvalidArgument("{}: hidden_act '{}' is not supported; silu is", file, activation);
  }
  if (fields.Find("quantization_config") != nullptr) {
    return InvalidArgument("{}: quantised weights (quantization_config) are not supported", file);
  }
  double partial = 1.0;
  SHOAL_RETURN_IF_ERROR(fields.Number("partial_rotary_factor", partial));
  if (partial != 1.0) {
    return InvalidArgument("{}: partial_rotary_factor {} is not supported", file, partial);
  }
  return RefuseWindows(fields, file, qwen2);
}

absl::Status ParseSizes(const JsonFields& fields, const std::string& file, ModelSpec& spec) {
  for (const char* needed : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                             "num_attention_heads"}) {
    SHOAL_RETURN_IF_ERROR(fields.Require(needed));
  }
  SHOAL_RETURN_IF_ERROR(fields.Integer("vocab_size", spec.vocabulary));
  SHOAL_RETURN_IF_ERROR(fields.Integer("hidden_size", spec.hidden));
  SHOAL_RETURN_IF_ERROR(fields.Integer("intermediate_size", spec.intermediate));
  SHOAL_RETURN_IF_ERROR(fields.Integer("num_hidden_layers", spec.layers));
  SHOAL_RETURN_IF_ERROR(fields.Integer("num_attention_heads", spec.heads));
  spec.kv_heads = spec.heads;
  SHOAL_RETURN_IF_ERROR(fields.Integer("num_key_value_heads", spec.kv_heads));
  SHOAL_RETURN_IF_ERROR(fields.Integer("head_dim", spec.head_dim));
  if (spec.head_dim == 0 && spec.heads > 0) {
    if (spec.hidden % spec.heads != 0) {
      return InvalidArgument(
          "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no "
          "head_dim",
          file, spec.hidden, spec.heads);
    }
    spec.head_dim = spec.hidden / spec.heads;
  }
  return fields.Integer("max_position_embeddings", spec.max_positions);
}

absl::Status ParseFlags(const JsonFields& fields, bool qwen2, ModelSpec& spec) {
  SHOAL_RETURN_IF_ERROR(fields.Number("rms_norm_eps", spec.norm_epsilon));
  SHOAL_RETURN_IF_ERROR(fields.Number("rope_theta", spec.rope_theta));
  SHOAL_RETURN_IF_ERROR(fields.Boolean("tie_word_embeddings", spec.tied_embeddings));
  if (qwen2) {
    spec.attention_bias = true;
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(fields.Boolean("attention_bias", spec.attention_bias));
  spec.output_bias = spec.attention_bias;
  return fields.Boolean("mlp_bias", spec.mlp_bias);
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(const std::string& text, const std::string& file_name) {
  SHOAL_ASSIGN_OR_RETURN(const json config, ParseJsonObject(text, file_name));
  const JsonFields fields(config, file_name);
  ModelSpec spec;
  SHOAL_ASSIGN_OR_RETURN(spec.architecture, ParseArchitecture(fields, file_name));
  const bool qwen2 = spec.architecture == kQwen2;
  // The library's own defaults, for keys that a config may omit.
  spec.max_positions = qwen2 ? 32768 : 2048;
  spec.norm_epsilon = 1e-6;
  SHOAL_RETURN_IF_ERROR(RefuseUnsupported(fields, file_name, qwen2));
  SHOAL_RETURN_IF_ERROR(ParseSizes(fields, file_name, spec));
  SHOAL_RETURN_IF_ERROR(ParseFlags(fields, qwen2, spec));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const json* rope = fields.Find(key); rope != nullptr) {
      SHOAL_RETURN_IF_ERROR(ParseRope(*rope, file_name, key, spec));
    }
  }
  if (absl::Status status = plan::Validate(spec); !status.ok()) {
    return Annotate(status, file_name);
  }
  return spec;
}

absl::StatusOr<ModelSpec> ReadModelSpec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
  return ParseModelSpec(text, path);
}

std::string ModelSpecToJson(const ModelSpec& spec, DType torch_dtype,
                            const SpecialTokens& special) {
  const bool qwen2 = spec.architecture == kQwen2;
  nlohmann::ordered_json config = {
      {"architectures", {spec.architecture}},
      {"model_type", qwen2 ? "qwen2" : "llama"},
      {"vocab_size", spec.vocabulary},
      {"hidden_size", spec.hidden},
      {"intermediate_size", spec.intermediate},
      {"num_hidden_layers", spec.layers},
      {"num_attention_heads", spec.heads},
      {"num_key_value_heads", spec.kv_heads},
      {"head_dim", spec.head_dim},
      {"max_position_embeddings", spec.max_positions},
      {"hidden_act", "silu"},
      {"initializer_range", 0.02},
      {"rms_norm_eps", spec.norm_epsilon},
      {"rope_theta", spec.rope_theta},
      {"tie_word_embeddings", spec.tied_embeddings},
      {"torch_dtype", torch_dtype == DType::kF32 ? "float32" : "bfloat16"},
      {"use_cache", true},
  };
  if (spec.rope_scaling) {
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", spec.rope_scaling->factor},
        {"low_freq_factor", spec.rope_scaling->low_frequency_factor},
        {"high_freq_factor", spec.rope_scaling->high_frequency_factor},
        {"original_max_position_embeddings", spec.rope_scaling->original_max_positions}};
  }
  if (qwen2) {
    config["use_sliding_window"] = false;
  } else {
    config["attention_bias"] = spec.attention_bias;
    config["mlp_bias"] = spec.mlp_bias;
  }
  if (special.bos >= 0) {
    config["bos_token_id"] = special.bos;
  }
  if (special.stops.size() > 1) {
    config["eos_token_id"] = special.stops;
  } else if (special.eos >= 0) {
    config["eos_token_id"] = special.eos;
  }
  return config.dump(2) + "\n";
}

}  // namespace shoal::formats
