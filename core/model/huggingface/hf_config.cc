// config.json <-> ModelSpec. Everything that would change the mathematics and is not implemented is
// refused by name; keys without effect here (dropout, cache settings, ...) are ignored.
#include "core/model/huggingface/hf_config.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/model/family.h"
#include "core/model/huggingface/hf_layers.h"
#include "core/model/huggingface/hf_model.h"
#include "fmt/ranges.h"

namespace shoal::formats {
namespace {

using plan::Family;
using plan::ModelSpec;

constexpr int64_t kMaxConfigBytes = 16 * kMiB;

// The family of an architecture, by what it is called alone or in a composite model.
const Family* FamilyOfArchitecture(const std::string& name, bool& composite) {
  for (const Family* family : plan::Families()) {
    composite = name == family->composite_architecture;
    if (composite || name == family->architecture) {
      return family;
    }
  }
  return nullptr;
}

absl::StatusOr<const Family*> ParseFamily(const JsonObject& config, bool& composite) {
  std::string key = "architectures";
  std::string name;
  const Family* family = nullptr;
  if (const Json* list = config.Find(key); list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      return InvalidArgument("{} is not a list of one name", config.At(key));
    }
    name = list->front().get<std::string>();
    family = FamilyOfArchitecture(name, composite);
  } else {
    key = "model_type";
    SHOAL_ASSIGN_OR_RETURN(name, config.String(key));
    family = plan::FindFamily(name);
  }
  if (family == nullptr) {
    std::vector<std::string_view> known;
    for (const Family* other : plan::Families()) {
      known.push_back(other->model_type);
    }
    return InvalidArgument("{}: '{}' is not supported; {} are", config.At(key), name,
                           fmt::join(known, ", "));
  }
  return family;
}

constexpr const char* NameOf(plan::Gate gate) {
  return gate == plan::Gate::kSilu ? "silu" : "gelu_pytorch_tanh";
}

absl::Status RefuseUnsupported(const JsonObject& config, const Family& family) {
  const char* const gate = NameOf(family.gate);
  SHOAL_ASSIGN_OR_RETURN(const std::string activation, config.StringOr(family.gate_key, gate));
  if (activation != gate) {
    return InvalidArgument("{}: '{}' is not supported; {} is", config.At(family.gate_key),
                           activation, gate);
  }
  SHOAL_ASSIGN_OR_RETURN(const bool both_ways, config.BoolOr("use_bidirectional_attention", false));
  if (both_ways) {
    return InvalidArgument("{}: true is not supported; false is",
                           config.At("use_bidirectional_attention"));
  }
  if (config.Find("quantization_config") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject how, config.Object("quantization_config"));
    SHOAL_ASSIGN_OR_RETURN(const std::string method, how.StringOr("quant_method", ""));
    return InvalidArgument("{}: '{}' is not supported; give the unquantised model",
                           how.At("quant_method"), method);
  }
  return absl::OkStatus();
}

// 0: there is no default.
absl::StatusOr<int64_t> IntegerOrDefault(const JsonObject& config, const char* key,
                                         int64_t otherwise) {
  return otherwise > 0 ? config.IntegerOr(key, otherwise) : config.Integer(key);
}

absl::Status ParseSizes(const JsonObject& config, const Family& family, ModelSpec& spec) {
  plan::Attention& attention = spec.kinds[0].attention;
  SHOAL_ASSIGN_OR_RETURN(spec.vocabulary,
                         IntegerOrDefault(config, "vocab_size", family.defaults.vocabulary));
  SHOAL_ASSIGN_OR_RETURN(spec.hidden, config.Integer("hidden_size"));
  SHOAL_ASSIGN_OR_RETURN(spec.kinds[0].mlp.intermediate, config.Integer("intermediate_size"));
  SHOAL_ASSIGN_OR_RETURN(spec.layers, config.Integer("num_hidden_layers"));
  SHOAL_ASSIGN_OR_RETURN(attention.heads,
                         IntegerOrDefault(config, "num_attention_heads", family.defaults.heads));
  const bool kv_heads_absent = !config.json().contains("num_key_value_heads");  // null is as heads
  SHOAL_ASSIGN_OR_RETURN(
      attention.kv_heads,
      config.IntegerOr("num_key_value_heads", kv_heads_absent && family.defaults.kv_heads > 0
                                                  ? family.defaults.kv_heads
                                                  : attention.heads));
  const bool head_dim_absent = !config.json().contains("head_dim");  // null is hidden / heads
  SHOAL_ASSIGN_OR_RETURN(
      attention.head_dim,
      config.IntegerOr("head_dim", head_dim_absent ? family.defaults.head_dim : 0));
  if (attention.head_dim == 0 && attention.heads > 0) {
    if (spec.hidden % attention.heads != 0) {
      return InvalidArgument(
          "{} is {}, no multiple of num_attention_heads {}, and there is no head_dim",
          config.At("hidden_size"), spec.hidden, attention.heads);
    }
    attention.head_dim = spec.hidden / attention.heads;
  }
  SHOAL_ASSIGN_OR_RETURN(spec.max_positions,
                         config.IntegerOr("max_position_embeddings", spec.max_positions));
  return absl::OkStatus();
}

absl::Status ParseFlags(const JsonObject& config, const Family& family, ModelSpec& spec) {
  plan::Attention& attention = spec.kinds[0].attention;
  plan::Mlp& mlp = spec.kinds[0].mlp;
  SHOAL_ASSIGN_OR_RETURN(spec.norm_epsilon, config.NumberOr("rms_norm_eps", spec.norm_epsilon));
  SHOAL_ASSIGN_OR_RETURN(spec.tied_embeddings,
                         config.BoolOr("tie_word_embeddings", spec.tied_embeddings));
  spec.kinds[0].norms = family.norms;
  attention.qk_norm = family.qk_norm;
  attention.qkv_bias = family.qkv_bias == plan::QkvBias::kAlways;
  if (family.qkv_bias == plan::QkvBias::kByKey) {
    SHOAL_ASSIGN_OR_RETURN(attention.qkv_bias, config.BoolOr("attention_bias", false));
    attention.output_bias = attention.qkv_bias;
  }
  if (family.mlp_bias_key) {
    SHOAL_ASSIGN_OR_RETURN(mlp.bias, config.BoolOr("mlp_bias", false));
  }
  return absl::OkStatus();
}

// A number above zero; null is zero.
absl::StatusOr<double> AboveZeroOr(const JsonObject& config, const char* key, double absent) {
  if (config.json().contains(key) && config.Find(key) == nullptr) {
    return 0;
  }
  SHOAL_ASSIGN_OR_RETURN(const double number, config.NumberOr(key, absent));
  return number > 0 || config.Find(key) == nullptr
             ? absl::StatusOr<double>(number)
             : InvalidArgument("{} is {}, must be above 0", config.At(key), number);
}

absl::Status ParseScalars(const JsonObject& config, const Family& family, ModelSpec& spec) {
  plan::Attention& attention = spec.kinds[0].attention;
  spec.norm_offset = family.norm_offset;
  spec.scaled_embeddings = family.scaled_embeddings;
  spec.kinds[0].mlp.gate = family.gate;
  if (family.defaults.query_scalar > 0) {
    SHOAL_ASSIGN_OR_RETURN(attention.query_scalar, AboveZeroOr(config, "query_pre_attn_scalar",
                                                               family.defaults.query_scalar));
  }
  if (family.score_softcap_key) {
    SHOAL_ASSIGN_OR_RETURN(attention.softcap, AboveZeroOr(config, "attn_logit_softcapping",
                                                          family.defaults.score_softcap));
  } else if (config.Find("attn_logit_softcapping") != nullptr) {
    return InvalidArgument("{} is not supported for {}", config.At("attn_logit_softcapping"),
                           family.model_type);
  }
  if (family.logits_softcap_key) {
    SHOAL_ASSIGN_OR_RETURN(spec.logits_softcap, AboveZeroOr(config, "final_logit_softcapping",
                                                            family.defaults.logits_softcap));
  }
  return absl::OkStatus();
}

// What is wrong begins with the key, if one key is wrong.
absl::Status InFile(const absl::Status& wrong, const std::string& file, const JsonLines& lines) {
  const std::string_view message = Message(wrong);
  const auto line = lines.find(message.substr(0, message.find_first_of(" :")));
  return Annotate(wrong, line == lines.end() ? file : fmt::format("{}:{}", file, line->second));
}

nlohmann::ordered_json OrNull(double number) {
  return number > 0 ? nlohmann::ordered_json(number) : nlohmann::ordered_json(nullptr);
}

// Libraries declare query_pre_attn_scalar an integer, and refuse 256.0.
nlohmann::ordered_json WholeOrNull(double number) {
  return number == std::floor(number) && number > 0
             ? nlohmann::ordered_json(static_cast<int64_t>(number))
             : OrNull(number);
}

absl::StatusOr<ModelSpec> ParseSpec(const JsonObject& config, const Family& family,
                                    const std::string& file, const JsonLines& lines) {
  ModelSpec spec{.family = std::string(family.model_type),
                 .max_positions = family.defaults.max_positions,
                 .norm_epsilon = family.defaults.norm_epsilon,
                 .tied_embeddings = family.defaults.tied_embeddings};
  SHOAL_RETURN_IF_ERROR(RefuseUnsupported(config, family));
  SHOAL_RETURN_IF_ERROR(ParseSizes(config, family, spec));
  SHOAL_RETURN_IF_ERROR(ParseFlags(config, family, spec));
  SHOAL_RETURN_IF_ERROR(ParseScalars(config, family, spec));
  SHOAL_ASSIGN_OR_RETURN(const Ropes ropes, ParseRotary(config, family, spec.max_positions,
                                                        spec.attention().head_dim));
  SHOAL_RETURN_IF_ERROR(InFile(plan::Validate(spec), file, lines));  // before layers are listed
  SHOAL_RETURN_IF_ERROR(ParseLayers(config, family, ropes, spec));
  SHOAL_RETURN_IF_ERROR(InFile(plan::Validate(spec), file, lines));
  return spec;
}

}  // namespace

absl::StatusOr<HfConfig> ParseConfig(const std::string& text, const std::string& file_name) {
  JsonLines lines;
  SHOAL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file_name, lines));
  SHOAL_ASSIGN_OR_RETURN(JsonObject config, JsonObject::From(json, file_name, &lines));
  HfConfig result;
  SHOAL_ASSIGN_OR_RETURN(const Family* family, ParseFamily(config, result.composite));
  if (result.composite) {
    SHOAL_RETURN_IF_ERROR(RefuseUnsupported(config, *family));  // of all parts
    SHOAL_ASSIGN_OR_RETURN(config, config.Object("text_config"));
  }
  SHOAL_ASSIGN_OR_RETURN(result.spec, ParseSpec(config, *family, file_name, lines));
  return result;
}

absl::StatusOr<ModelSpec> ParseModelSpec(const std::string& text, const std::string& file_name) {
  SHOAL_ASSIGN_OR_RETURN(HfConfig config, ParseConfig(text, file_name));
  return std::move(config.spec);
}

absl::StatusOr<HfConfig> ReadConfig(const std::string& folder) {
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
  return ParseConfig(text, path);
}

absl::StatusOr<ModelSpec> ReadModelSpec(const std::string& folder) {
  SHOAL_ASSIGN_OR_RETURN(HfConfig config, ReadConfig(folder));
  return std::move(config.spec);
}

std::string ModelSpecToJson(const ModelSpec& spec, DType torch_dtype,
                            const SpecialTokens& special) {
  const Family& family = plan::FamilyOf(spec);
  const plan::Attention& attention = spec.attention();
  const plan::Mlp& mlp = spec.mlp();
  nlohmann::ordered_json config = {
      {"architectures", {family.architecture}},
      {"model_type", family.model_type},
      {"vocab_size", spec.vocabulary},
      {"hidden_size", spec.hidden},
      {"intermediate_size", mlp.intermediate},
      {"num_hidden_layers", spec.layers},
      {"num_attention_heads", attention.heads},
      {"num_key_value_heads", attention.kv_heads},
      {"head_dim", attention.head_dim},
      {"max_position_embeddings", spec.max_positions},
      {std::string(family.gate_key), NameOf(mlp.gate)},
      {"initializer_range", 0.02},
      {"rms_norm_eps", spec.norm_epsilon},
      {"rope_theta", attention.rope.theta},
      {"tie_word_embeddings", spec.tied_embeddings},
      {"torch_dtype", torch_dtype == DType::kF32 ? "float32" : "bfloat16"},
      {"use_cache", true},
  };
  AddRotary(spec, family, config);
  AddLayers(spec, family, config);
  if (family.qkv_bias == plan::QkvBias::kByKey) {
    config["attention_bias"] = attention.qkv_bias;
  }
  if (family.mlp_bias_key) {
    config["mlp_bias"] = mlp.bias;
  }
  if (family.defaults.query_scalar > 0) {
    config["query_pre_attn_scalar"] = WholeOrNull(attention.query_scalar);
  }
  if (family.score_softcap_key) {
    config["attn_logit_softcapping"] = OrNull(attention.softcap);
  }
  if (family.logits_softcap_key) {
    config["final_logit_softcapping"] = OrNull(spec.logits_softcap);
  }
  config["pad_token_id"] = nullptr;  // the library's default may be beyond the vocabulary
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
