// Where Hugging Face folders keep the begin- and end-of-sequence ids: config.json, else
// generation_config.json; tokenizer_config.json names tokens whose ids tokenizer.json has.
#include <algorithm>
#include <filesystem>

#include "core/base/json/json_fields.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {
namespace {

using nlohmann::json;

// A single id or a list of them.
absl::StatusOr<std::vector<int64_t>> ReadIds(const json& object, const std::string& key,
                                             const std::string& path) {
  std::vector<int64_t> ids;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return ids;
  }
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0) {
      return InvalidArgument("{}: {} is not a token id or a list of them", path, key);
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// Returns an empty object if the file does not exist.
absl::StatusOr<json> ReadOptional(const std::string& path) {
  absl::StatusOr<json> object = ReadJsonObject(path);
  return absl::IsNotFound(object.status()) ? absl::StatusOr<json>(json::object())
                                           : std::move(object);
}

// "eos_token": "</s>", or {"content": "</s>", ...}.
std::string TokenText(const json& tokenizer_config, const std::string& key) {
  const auto found = tokenizer_config.find(key);
  if (found == tokenizer_config.end()) {
    return "";
  }
  const json text = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return text.is_string() ? text.get<std::string>() : "";
}

int64_t AddedTokenId(const json& tokenizer, const std::string& text) {
  const auto added = tokenizer.find("added_tokens");
  if (text.empty() || added == tokenizer.end() || !added->is_array()) {
    return -1;
  }
  for (const json& token : *added) {
    if (token.is_object() && token.contains("content") && token["content"] == text &&
        token.contains("id") && token["id"].is_number_integer()) {
      return token["id"].get<int64_t>();
    }
  }
  return -1;
}

}  // namespace

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& folder) {
  std::vector<int64_t> bos;
  std::vector<int64_t> eos;
  for (const char* name : {"/config.json", "/generation_config.json"}) {
    SHOAL_ASSIGN_OR_RETURN(const json object, ReadOptional(folder + name));
    SHOAL_ASSIGN_OR_RETURN(const auto more_bos, ReadIds(object, "bos_token_id", folder + name));
    SHOAL_ASSIGN_OR_RETURN(const auto more_eos, ReadIds(object, "eos_token_id", folder + name));
    bos.insert(bos.end(), more_bos.begin(), more_bos.end());
    for (const int64_t id : more_eos) {
      if (std::find(eos.begin(), eos.end(), id) == eos.end()) {
        eos.push_back(id);
      }
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const json config, ReadOptional(folder + "/tokenizer_config.json"));
  SHOAL_ASSIGN_OR_RETURN(const json tokenizer, ReadOptional(folder + "/tokenizer.json"));
  const int64_t named_bos = AddedTokenId(tokenizer, TokenText(config, "bos_token"));
  const int64_t named_eos = AddedTokenId(tokenizer, TokenText(config, "eos_token"));

  SpecialTokens special;
  special.bos = bos.empty() ? named_bos : bos.front();
  special.stops = eos;
  // If several ids end a text, templates use the tokenizer's own end token.
  const bool named_is_listed = std::find(eos.begin(), eos.end(), named_eos) != eos.end();
  special.eos = eos.empty() || named_is_listed ? named_eos : eos.front();
  if (special.stops.empty() && special.eos >= 0) {
    special.stops = {special.eos};
  }
  return special;
}

}  // namespace shoal::formats
