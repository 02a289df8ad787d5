#include "core/data/tokenizer/tokenizer_file.h"

#include "core/base/status.h"
#include "core/data/tokenizer/steps.h"

namespace shoal::worker {
namespace {

constexpr size_t kMaxSpecialIds = 1024;  // that a post-processor adds

absl::StatusOr<std::pair<std::string, std::string>> ParseMerge(const Json& json,
                                                               const std::string& where) {
  if (json.is_string()) {
    const std::string& text = json.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return InvalidArgument("{}: '{}' is not two tokens with one space between them", where, text);
    }
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_string()) {
    return InvalidArgument("{}: a merge is a string \"a b\" or a pair [\"a\", \"b\"]", where);
  }
  return std::pair(json[0].get<std::string>(), json[1].get<std::string>());
}

absl::Status CheckModelKind(const JsonObject& object) {
  // Files of the library's first versions omit the type; those models are recognised by having
  // merges.
  SHOAL_ASSIGN_OR_RETURN(const std::string type,
                         object.StringOr("type", object.Find("merges") != nullptr ? "BPE" : ""));
  if (type != "BPE") {
    return InvalidArgument("{} type '{}' is not supported; shoal reads BPE", object.where(), type);
  }
  SHOAL_RETURN_IF_ERROR(object.AllowOnly(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SHOAL_ASSIGN_OR_RETURN(const std::string value, object.StringOr(key, ""));
    if (!value.empty()) {
      return InvalidArgument("{}: {} '{}' is not supported", object.where(), key, value);
    }
  }
  if (const Json* dropout = object.Find("dropout");
      dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    return InvalidArgument("{}: dropout is not supported (it makes tokens random)", object.where());
  }
  return absl::OkStatus();
}

absl::Status AppendSpecial(const JsonObject& processor, const std::string& name,
                           std::vector<int32_t>& ids) {
  SHOAL_ASSIGN_OR_RETURN(const JsonObject table, processor.Object("special_tokens"));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject entry, table.Object(name));
  SHOAL_ASSIGN_OR_RETURN(const Json* list, entry.Array("ids"));
  for (const Json& id : *list) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t value,
                           IntegerIn(id, 0, kMaxTokenId - 1, entry.where() + ": id"));
    ids.push_back(static_cast<int32_t>(value));
  }
  if (ids.size() > kMaxSpecialIds) {
    return InvalidArgument("{}: more than {} special tokens around a text", processor.where(),
                           kMaxSpecialIds);
  }
  return absl::OkStatus();
}

absl::Status ParseTemplate(const JsonObject& object, PostProcessor& out) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "single", "pair", "special_tokens"}));
  SHOAL_ASSIGN_OR_RETURN(const Json* single, object.Array("single"));
  int sequences = 0;
  for (const Json& part : *single) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject item,
                           JsonObject::From(part, object.where() + ": single"));
    SHOAL_RETURN_IF_ERROR(item.AllowOnly({"SpecialToken", "Sequence"}));
    if (item.Find("Sequence") != nullptr) {
      ++sequences;
      continue;
    }
    SHOAL_ASSIGN_OR_RETURN(const JsonObject special, item.Object("SpecialToken"));
    SHOAL_ASSIGN_OR_RETURN(const std::string name, special.String("id"));
    SHOAL_RETURN_IF_ERROR(AppendSpecial(object, name, sequences == 0 ? out.prefix : out.suffix));
  }
  if (sequences != 1) {
    return InvalidArgument("{}: single has {} sequences, one was expected", object.where(),
                           sequences);
  }
  return absl::OkStatus();
}

absl::Status ParseProcessor(const JsonObject& object, const std::string& type, PostProcessor& out) {
  if (type == "ByteLevel") {  // only sets offsets
    return absl::OkStatus();
  }
  if (type == "TemplateProcessing") {
    // A later template wraps the result of an earlier one.
    PostProcessor outer;
    SHOAL_RETURN_IF_ERROR(ParseTemplate(object, outer));
    out.prefix.insert(out.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
    out.suffix.insert(out.suffix.end(), outer.suffix.begin(), outer.suffix.end());
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}: type '{}' is not supported; shoal knows Sequence, TemplateProcessing and ByteLevel",
      object.where(), type);
}

}  // namespace

absl::StatusOr<BpeModel> ParseBpeModel(const Json& json, const std::string& where) {
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, where));
  SHOAL_RETURN_IF_ERROR(CheckModelKind(object));
  BpeModel model;
  SHOAL_ASSIGN_OR_RETURN(model.unknown_token, object.StringOr("unk_token", ""));
  SHOAL_ASSIGN_OR_RETURN(model.fuse_unknown, object.BoolOr("fuse_unk", false));
  SHOAL_ASSIGN_OR_RETURN(model.byte_fallback, object.BoolOr("byte_fallback", false));
  SHOAL_ASSIGN_OR_RETURN(model.ignore_merges, object.BoolOr("ignore_merges", false));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject vocabulary, object.Object("vocab"));
  model.vocabulary.reserve(vocabulary.json().size());
  for (const auto& item : vocabulary.json().items()) {
    SHOAL_ASSIGN_OR_RETURN(
        const int64_t id, IntegerIn(item.value(), 0, kMaxTokenId - 1,
                                    fmt::format("{}: id of '{}'", vocabulary.where(), item.key())));
    model.vocabulary.emplace_back(item.key(), static_cast<int32_t>(id));
  }
  SHOAL_ASSIGN_OR_RETURN(const Json* merges, object.Array("merges"));
  model.merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(auto merge,
                           ParseMerge((*merges)[i], fmt::format("{}: merge {}", where, i)));
    model.merges.push_back(std::move(merge));
  }
  return model;
}

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Json& json,
                                                         const std::string& where) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) {
    return tokens;
  }
  if (!json.is_array()) {
    return InvalidArgument("{} is {}, an array was expected", where, json.type_name());
  }
  for (size_t i = 0; i < json.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject object,
                           JsonObject::From(json[i], fmt::format("{}: entry {}", where, i)));
    SHOAL_RETURN_IF_ERROR(object.AllowOnly(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedToken token;
    SHOAL_ASSIGN_OR_RETURN(const int64_t id, object.Integer("id", 0, kMaxTokenId - 1));
    token.id = static_cast<int32_t>(id);
    SHOAL_ASSIGN_OR_RETURN(token.content, object.String("content"));
    SHOAL_ASSIGN_OR_RETURN(token.single_word, object.BoolOr("single_word", false));
    SHOAL_ASSIGN_OR_RETURN(token.lstrip, object.BoolOr("lstrip", false));
    SHOAL_ASSIGN_OR_RETURN(token.rstrip, object.BoolOr("rstrip", false));
    SHOAL_ASSIGN_OR_RETURN(token.special, object.BoolOr("special", false));
    SHOAL_ASSIGN_OR_RETURN(token.normalized, object.BoolOr("normalized", !token.special));
    if (token.content.empty()) {
      return InvalidArgument("{}: content is empty", object.where());
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::StatusOr<PostProcessor> ParsePostProcessor(const Json& json, const std::string& where) {
  PostProcessor processor;
  SHOAL_RETURN_IF_ERROR(ParseSteps(json, where, "processors", ParseProcessor, processor));
  return processor;
}

}  // namespace shoal::worker
