// config.json <-> ModelSpec. Everything that would change the mathematics and is not implemented is
// refused by name; keys without effect here (dropout, cache settings, ...) are ignored.
#include <filesystem>
#include <string>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {
namespace {

using plan::ModelSpec;
using plan::RopeScaling;

constexpr const char* kLlama = "LlamaForCausalLM";
constexpr int64_t kMaxConfigBytes = 16 * kMiB;
constexpr const char* kQwen2 = "Qwen2ForCausalLM";

absl::StatusOr<std::string> ParseArchitecture(const JsonObject& config) {
  std::string architecture;
  if (const Json* list = config.Find("architectures"); list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      return InvalidArgument("{}: architectures is not a list of one name", config.where());
    }
    architecture = list->front().get<std::string>();
  } else {
    SHOAL_ASSIGN_OR_RETURN(const std::string type, config.String("model_type"));
    architecture = type == "llama" ? kLlama : type == "qwen2" ? kQwen2 : type;
  }
  if (architecture != kLlama && architecture != kQwen2) {
    return InvalidArgument("{}: architecture '{}' is not supported; {} and {} are", config.where(),
                           architecture, kLlama, kQwen2);
  }
  return architecture;
}

absl::Status RefusePartialRotary(const JsonObject& object) {
  SHOAL_ASSIGN_OR_RETURN(const double partial, object.NumberOr("partial_rotary_factor", 1));
  return partial == 1 ? absl::OkStatus()
                      : InvalidArgument("{}: partial_rotary_factor {} is not supported",
                                        object.where(), partial);
}

// `rope` is rope_scaling, or what transformers 5 calls rope_parameters (which has rope_theta too).
absl::Status ParseRope(const JsonObject& rope, ModelSpec& spec) {
  SHOAL_ASSIGN_OR_RETURN(spec.rope_theta, rope.NumberOr("rope_theta", spec.rope_theta));
  SHOAL_ASSIGN_OR_RETURN(std::string type, rope.StringOr("type", "default"));
  SHOAL_ASSIGN_OR_RETURN(type, rope.StringOr("rope_type", type));
  SHOAL_RETURN_IF_ERROR(RefusePartialRotary(rope));
  if (type == "default") {
    return absl::OkStatus();
  }
  if (type != "llama3") {
    return InvalidArgument("{}: rope type '{}' is not supported; default and llama3 are",
                           rope.where(), type);
  }
  RopeScaling scaling;
  SHOAL_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.low_frequency_factor, rope.Number("low_freq_factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.high_frequency_factor, rope.Number("high_freq_factor"));
  SHOAL_ASSIGN_OR_RETURN(scaling.original_max_positions,
                         rope.Integer("original_max_position_embeddings"));
  spec.rope_scaling = scaling;
  return absl::OkStatus();
}

absl::Status RefuseWindows(const JsonObject& config, bool qwen2) {
  // Qwen2 names a window size that it uses only if another key says so.
  SHOAL_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", !qwen2));
  if (use_window && (qwen2 || config.Find("sliding_window") != nullptr)) {
    return InvalidArgument(
        "{}: sliding-window attention (use_sliding_window, sliding_window) is not supported",
        config.where());
  }
  if (config.Find("layer_types") == nullptr) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const Json* types, config.Array("layer_types"));
  for (const Json& type : *types) {
    if (type != "full_attention") {
      return InvalidArgument("{}: layer_types: only full_attention is supported, found {}",
                             config.where(), type.dump(-1, ' ', true));
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseUnsupported(const JsonObject& config, bool qwen2) {
  SHOAL_ASSIGN_OR_RETURN(const std::string activation, config.StringOr("hidden_act", "silu"));
  if (activation != "silu") {
    return InvalidArgument("{}: hidden_act '{}' is not supported; silu is", config.where(),
                           activation);
  }
  if (config.Find("quantization_config") != nullptr) {
    return InvalidArgument("{}: quantised weights (quantization_config) are not supported",
                           config.where());
  }
  SHOAL_RETURN_IF_ERROR(RefusePartialRotary(config));
  return RefuseWindows(config, qwen2);
}

absl::Status ParseSizes(const JsonObject& config, ModelSpec& spec) {
  SHOAL_ASSIGN_OR_RETURN(spec.vocabulary, config.Integer("vocab_size"));
  SHOAL_ASSIGN_OR_RETURN(spec.hidden, config.Integer("hidden_size"));
  SHOAL_ASSIGN_OR_RETURN(spec.intermediate, config.Integer("intermediate_size"));
  SHOAL_ASSIGN_OR_RETURN(spec.layers, config.Integer("num_hidden_layers"));
  SHOAL_ASSIGN_OR_RETURN(spec.heads, config.Integer("num_attention_heads"));
  SHOAL_ASSIGN_OR_RETURN(spec.kv_heads, config.IntegerOr("num_key_value_heads", spec.heads));
  SHOAL_ASSIGN_OR_RETURN(spec.head_dim, config.IntegerOr("head_dim", 0));
  if (spec.head_dim == 0 && spec.heads > 0) {
    if (spec.hidden % spec.heads != 0) {
      return InvalidArgument(
          "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no "
          "head_dim",
          config.where(), spec.hidden, spec.heads);
    }
    spec.head_dim = spec.hidden / spec.heads;
  }
  SHOAL_ASSIGN_OR_RETURN(spec.max_positions,
                         config.IntegerOr("max_position_embeddings", spec.max_positions));
  return absl::OkStatus();
}

absl::Status ParseFlags(const JsonObject& config, bool qwen2, ModelSpec& spec) {
  SHOAL_ASSIGN_OR_RETURN(spec.norm_epsilon, config.NumberOr("rms_norm_eps", spec.norm_epsilon));
  SHOAL_ASSIGN_OR_RETURN(spec.rope_theta, config.NumberOr("rope_theta", spec.rope_theta));
  SHOAL_ASSIGN_OR_RETURN(spec.tied_embeddings,
                         config.BoolOr("tie_word_embeddings", spec.tied_embeddings));
  if (qwen2) {
    spec.attention_bias = true;
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(spec.attention_bias, config.BoolOr("attention_bias", false));
  spec.output_bias = spec.attention_bias;
  SHOAL_ASSIGN_OR_RETURN(spec.mlp_bias, config.BoolOr("mlp_bias", false));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(const std::string& text, const std::string& file_name) {
  SHOAL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file_name));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::From(json, file_name));
  ModelSpec spec;
  SHOAL_ASSIGN_OR_RETURN(spec.architecture, ParseArchitecture(config));
  const bool qwen2 = spec.architecture == kQwen2;
  // The library's own defaults, for keys that a config may omit.
  spec.max_positions = qwen2 ? 32768 : 2048;
  spec.norm_epsilon = 1e-6;
  SHOAL_RETURN_IF_ERROR(RefuseUnsupported(config, qwen2));
  SHOAL_RETURN_IF_ERROR(ParseSizes(config, spec));
  SHOAL_RETURN_IF_ERROR(ParseFlags(config, qwen2, spec));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (config.Find(key) != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(const JsonObject rope, config.Object(key));
      SHOAL_RETURN_IF_ERROR(ParseRope(rope, spec));
    }
  }
  if (absl::Status status = plan::Validate(spec); !status.ok()) {
    return Annotate(status, file_name);
  }
  return spec;
}

absl::StatusOr<ModelSpec> ReadModelSpec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return NotFound(
        "{} is no folder; a model is a folder with config.json, and one of the Hugging Face hub is "
        "fetched first: huggingface-cli download NAME --local-dir FOLDER",
        folder);
  }
  if (!std::filesystem::exists(path, error)) {
    return NotFound("{} has no config.json; give the folder of a Hugging Face model", folder);
  }
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
