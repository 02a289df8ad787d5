// Where Hugging Face folders keep the begin- and end-of-sequence ids: config.json, else
// generation_config.json; tokenizer_config.json names tokens whose ids tokenizer.json has.
#include <algorithm>
#include <filesystem>

#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {
namespace {

// A single id or a list of them.
absl::StatusOr<std::vector<int64_t>> ReadIds(const Json& object, const std::string& key,
                                             const std::string& path) {
  std::vector<int64_t> ids;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return ids;
  }
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0) {
      return InvalidArgument("{}: {} is not a token id or a list of them", path, key);
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// Returns an empty object if the file does not exist.
absl::StatusOr<Json> ReadOptional(const std::string& path) {
  absl::StatusOr<Json> json = ReadJson(path);
  if (absl::IsNotFound(json.status())) {
    return Json::object();
  }
  if (json.ok()) {
    SHOAL_RETURN_IF_ERROR(JsonObject::From(*json, path).status());
  }
  return json;
}

// "eos_token": "</s>", or {"content": "</s>", ...}.
std::string TokenText(const Json& tokenizer_config, const std::string& key) {
  const auto found = tokenizer_config.find(key);
  if (found == tokenizer_config.end()) {
    return "";
  }
  const Json text = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return text.is_string() ? text.get<std::string>() : "";
}

int64_t AddedTokenId(const Json& tokenizer, const std::string& text) {
  const auto added = tokenizer.find("added_tokens");
  if (text.empty() || added == tokenizer.end() || !added->is_array()) {
    return -1;
  }
  for (const Json& token : *added) {
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
    SHOAL_ASSIGN_OR_RETURN(const Json object, ReadOptional(folder + name));
    SHOAL_ASSIGN_OR_RETURN(const auto more_bos, ReadIds(object, "bos_token_id", folder + name));
    SHOAL_ASSIGN_OR_RETURN(const auto more_eos, ReadIds(object, "eos_token_id", folder + name));
    bos.insert(bos.end(), more_bos.begin(), more_bos.end());
    for (const int64_t id : more_eos) {
      if (std::find(eos.begin(), eos.end(), id) == eos.end()) {
        eos.push_back(id);
      }
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const Json config, ReadOptional(folder + "/tokenizer_config.json"));
  SHOAL_ASSIGN_OR_RETURN(const Json tokenizer, ReadOptional(folder + "/tokenizer.json"));
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
