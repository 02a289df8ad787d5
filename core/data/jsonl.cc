#include "core/data/jsonl.h"

#include <algorithm>
#include <array>

#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/data/pairs/pair.h"
#include "core/data/token_file.h"

namespace shoal::worker {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 11> kFields = {
    "messages", "prompt", "completion", "input_ids", "labels",  "weight",
    "weights",  "answer", "text",       "chosen",    "rejected"};

absl::StatusOr<float> ParseWeight(const Json& json, std::string_view what) {
  const double number = json.is_number() ? json.get<double>() : -1;
  const bool in_range = number >= 0 && number <= static_cast<double>(formats::kMostWeight);
  const float weight = in_range ? static_cast<float>(number) : -1;
  if (number != 0 && !formats::IsWeight(weight)) {
    return InvalidArgument("{} is {}, not 0 or a number from {} to {}", what,
                           json.is_primitive() ? json.dump() : json.type_name(),
                           formats::kLeastWeight, formats::kMostWeight);
  }
  return weight;
}

// That of a sample or a message; 1 where it has none.
absl::StatusOr<float> WeightOf(const JsonObject& object, const std::string& name) {
  const Json* weight = object.Find(name);
  return weight == nullptr ? absl::StatusOr<float>(1.0f)
                           : ParseWeight(*weight, fmt::format("{}: {}", object.where(), name));
}

// Finds our fields under the file's names.
class Fields {
 public:
  Fields(const JsonObject& object, const JsonlOptions& options)
      : object_(object), options_(options) {}

  std::string NameOf(const std::string& field) const {
    const auto found = options_.fields.find(field);
    return found == options_.fields.end() ? field : found->second;
  }
  // Whether another of our fields has that name of the file's.
  bool IsTaken(const std::string& name) const {
    return std::ranges::any_of(options_.fields,
                               [&name](const auto& field) { return field.second == name; });
  }
  bool Has(const std::string& field) const { return object_.Find(NameOf(field)) != nullptr; }
  absl::StatusOr<std::string> String(const std::string& field) const {
    return object_.String(NameOf(field));
  }
  absl::StatusOr<const Json*> Array(const std::string& field) const {
    return object_.Array(NameOf(field));
  }
  // Text or a number; anything else that happens to have this name is not our field.
  std::optional<std::string> Answer() const {
    const Json* value = object_.Find(NameOf("answer"));
    if (value == nullptr || !(value->is_string() || value->is_number())) {
      return std::nullopt;
    }
    return value->is_string() ? value->get<std::string>() : value->dump();
  }

 private:
  const JsonObject& object_;
  const JsonlOptions& options_;
};

// A text, or the texts of a list of parts; nothing where a message calls tools instead, or `null`
// is what it says.
absl::StatusOr<std::string> ContentOf(const JsonObject& message, bool null) {
  const Json* content = message.Find("content");
  if (content == nullptr && (null || message.Find("tool_calls") != nullptr)) {
    return "";
  }
  if (content == nullptr || !content->is_array()) {
    return message.String("content");
  }
  std::string texts;
  for (size_t i = 0; i < content->size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(
        const JsonObject part,
        JsonObject::From((*content)[i], fmt::format("{}: content[{}]", message.where(), i)));
    SHOAL_ASSIGN_OR_RETURN(const std::string text, part.String("text"));
    texts += text;
  }
  return texts;
}

absl::StatusOr<std::vector<ChatMessage>> ParseMessages(const Json& list, std::string_view where) {
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject object,
                           JsonObject::From(list[i], fmt::format("{}: message {}", where, i)));
    SHOAL_ASSIGN_OR_RETURN(const std::string role_name, object.String("role"));
    const absl::StatusOr<Role> role = ParseRole(role_name);
    if (!role.ok()) {
      return Annotate(role.status(), object.where());
    }
    const bool null = *role == Role::kAssistant && list[i].contains("content");
    SHOAL_ASSIGN_OR_RETURN(std::string content, ContentOf(object, null));
    SHOAL_ASSIGN_OR_RETURN(const float weight, WeightOf(object, "weight"));
    messages.push_back({.role = *role, .content = std::move(content), .weight = weight});
  }
  if (messages.empty()) {
    return InvalidArgument("{}: there are no messages", where);
  }
  return messages;
}

bool SaysMore(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& message) {
    return message.size() > 2 || !message.contains("content") || !message["content"].is_string();
  });
}

// Arguments of a call may be an object, or its JSON as a text; templates get the object.
absl::Status ReadArguments(OrderedJson& call, const std::string& where) {
  OrderedJson& function = call.is_object() && call.contains("function") ? call["function"] : call;
  if (!function.is_object() || !function.contains("arguments")) {
    return absl::OkStatus();
  }
  OrderedJson& arguments = function["arguments"];
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    if (ParseJson(text, where).ok()) {
      arguments = OrderedJson::parse(text);
    }
  }
  return arguments.is_object()
             ? absl::OkStatus()
             : InvalidArgument("{}{}.arguments is not an object nor JSON text", where,
                               call.contains("function") ? ".function" : "");
}

// Takes what templates of a model's own may read besides: other fields of messages, and tools. In
// the order of the file, since templates write objects as they lie there. Empty lists of tools and
// of calls say nothing.
absl::Status TakeMore(std::string_view line, const Json& messages, const std::string& name,
                      std::string_view where, JsonlSample& sample) {
  const bool has_tools = line.find("\"tools\"") != std::string_view::npos;
  if (!has_tools && !SaysMore(messages)) {
    return absl::OkStatus();
  }
  OrderedJson ordered = OrderedJson::parse(line);
  for (size_t i = 0; i < sample.messages.size(); ++i) {
    OrderedJson& message = ordered[name][i];
    message.erase("role");
    message.erase("weight");
    if (!message.contains("content") || !message["content"].is_array()) {
      message.erase("content");
    }
    OrderedJson& calls = message["tool_calls"];
    for (size_t k = 0; calls.is_array() && k < calls.size(); ++k) {
      SHOAL_RETURN_IF_ERROR(
          ReadArguments(calls[k], fmt::format("{}: {}[{}].tool_calls[{}]", where, name, i, k)));
    }
    if (calls.empty()) {
      message.erase("tool_calls");
    }
    if (!message.empty()) {
      sample.messages[i].more = std::move(message);
    }
  }
  sample.tools = ordered.value("tools", OrderedJson());
  if (sample.tools.is_string() && ParseJson(sample.tools.get<std::string>(), where).ok()) {
    sample.tools = OrderedJson::parse(sample.tools.get<std::string>());
  }
  if (sample.tools.is_array() && sample.tools.empty()) {
    sample.tools = nullptr;
  }
  return sample.tools.is_null() || sample.tools.is_array()
             ? absl::OkStatus()
             : InvalidArgument("{}: tools is not a list nor JSON text of one", where);
}

absl::StatusOr<std::vector<int32_t>> ParseIds(const Json& list, const std::string& name,
                                              bool labels, int64_t vocabulary,
                                              std::string_view where) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    if (labels && id.is_number_integer() && id == formats::kIgnoredLabel) {
      ids.push_back(formats::kIgnoredLabel);
      continue;
    }
    if (!id.is_number_integer() || id < 0 || id >= vocabulary) {
      return InvalidArgument("{}: {}[{}] is {}, not {}an id of the vocabulary (0 to {})", where,
                             name, i, id.is_primitive() ? id.dump() : id.type_name(),
                             labels ? "-100 or " : "", vocabulary - 1);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::Status ParseWeights(const Fields& fields, std::string_view where, JsonlSample& sample) {
  const std::string name = fields.NameOf("weights");
  SHOAL_ASSIGN_OR_RETURN(const Json* weights, fields.Array("weights"));
  if (weights->size() != sample.labels.size()) {
    return InvalidArgument("{}: {} has {} entries and {} has {}; they must be equally many", where,
                           name, weights->size(), fields.NameOf("labels"), sample.labels.size());
  }
  for (size_t i = 0; i < weights->size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(sample.weights.emplace_back(),
                           ParseWeight((*weights)[i], fmt::format("{}: {}[{}]", where, name, i)));
  }
  return absl::OkStatus();
}

absl::Status ParseTokens(const Fields& fields, int64_t vocabulary, std::string_view where,
                         JsonlSample& sample) {
  SHOAL_ASSIGN_OR_RETURN(const Json* ids, fields.Array("input_ids"));
  SHOAL_ASSIGN_OR_RETURN(const Json* labels, fields.Array("labels"));
  SHOAL_ASSIGN_OR_RETURN(sample.input_ids,
                         ParseIds(*ids, fields.NameOf("input_ids"), false, vocabulary, where));
  SHOAL_ASSIGN_OR_RETURN(sample.labels,
                         ParseIds(*labels, fields.NameOf("labels"), true, vocabulary, where));
  if (sample.input_ids.size() != sample.labels.size()) {
    return InvalidArgument("{}: {} has {} entries and {} has {}; they must be equally many", where,
                           fields.NameOf("input_ids"), sample.input_ids.size(),
                           fields.NameOf("labels"), sample.labels.size());
  }
  return fields.Has("weights") ? ParseWeights(fields, where, sample) : absl::OkStatus();
}

absl::StatusOr<Role> RoleOfShareGpt(const std::string& from) {
  if (from == "human" || from == "user") {
    return Role::kUser;
  }
  if (from == "gpt" || from == "assistant" || from == "model" || from == "chatgpt") {
    return Role::kAssistant;
  }
  if (from == "system") {
    return Role::kSystem;
  }
  return InvalidArgument("a turn is from '{}'; known are system, human (user) and gpt (assistant)",
                         from);
}

absl::Status AddSystem(const JsonObject& object, std::vector<ChatMessage>& messages) {
  SHOAL_ASSIGN_OR_RETURN(std::string system, object.StringOr("system", ""));
  if (!system.empty()) {
    messages.push_back({Role::kSystem, std::move(system)});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ChatMessage>> ParseShareGpt(const JsonObject& object) {
  std::vector<ChatMessage> messages;
  SHOAL_RETURN_IF_ERROR(AddSystem(object, messages));
  SHOAL_ASSIGN_OR_RETURN(const Json* turns, object.Array("conversations"));
  for (size_t i = 0; i < turns->size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(
        const JsonObject turn,
        JsonObject::From((*turns)[i], fmt::format("{}: conversations[{}]", object.where(), i)));
    SHOAL_ASSIGN_OR_RETURN(const std::string from, turn.String("from"));
    const absl::StatusOr<Role> role = RoleOfShareGpt(from);
    if (!role.ok()) {
      return Annotate(role.status(), turn.where());
    }
    SHOAL_ASSIGN_OR_RETURN(std::string value, turn.String("value"));
    SHOAL_ASSIGN_OR_RETURN(const float weight, WeightOf(turn, "weight"));
    messages.push_back({.role = *role, .content = std::move(value), .weight = weight});
  }
  if (messages.empty()) {
    return InvalidArgument("{}: there are no turns in conversations", object.where());
  }
  return messages;
}

absl::StatusOr<std::vector<ChatMessage>> ParseAlpaca(const JsonObject& object) {
  std::vector<ChatMessage> messages;
  SHOAL_RETURN_IF_ERROR(AddSystem(object, messages));
  if (object.Find("history") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const Json* history, object.Array("history"));
    for (size_t i = 0; i < history->size(); ++i) {
      const Json& turn = (*history)[i];
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
        return InvalidArgument("{}: history[{}] is no list of what the user and the assistant said",
                               object.where(), i);
      }
      messages.push_back({Role::kUser, turn[0].get<std::string>()});
      messages.push_back({Role::kAssistant, turn[1].get<std::string>()});
    }
  }
  SHOAL_ASSIGN_OR_RETURN(std::string user, object.String("instruction"));
  SHOAL_ASSIGN_OR_RETURN(const std::string input, object.StringOr("input", ""));
  SHOAL_ASSIGN_OR_RETURN(std::string output, object.String("output"));
  user += input.empty() ? "" : "\n" + input;
  messages.push_back({Role::kUser, std::move(user)});
  messages.push_back({Role::kAssistant, std::move(output)});
  return messages;
}

// Says of what is no JSON what it may be; empty where that is not known.
std::string KnownFile(std::string_view text) {
  if (text.starts_with("PAR1")) {
    return "the file is Parquet; write it as JSONL";
  }
  if (text.starts_with("SHOALTOK")) {
    return "the file is a token file, which is taken alone and needs no preparing";
  }
  return text.starts_with('{') ? "" : "is this plain text? JSONL has one object a line";
}

// Returns "question, answer": the keys that a line has instead of the expected ones.
std::string KeysOf(const Json& json) {
  std::string keys;
  for (const auto& item : json.items()) {
    if (keys.size() > 200) {
      return keys + ", ...";
    }
    keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", item.key());
  }
  return keys.empty() ? "nothing" : keys;
}

absl::Status ParseDocument(const Fields& fields, std::string_view where, const Json& json,
                           JsonlSample& sample) {
  if (!fields.Has("text")) {
    return InvalidArgument(
        "{}: no '{}' is there, but {}; train.objective: pretrain takes documents, and data.fields "
        "may name the file's, e.g. {{text: content}}",
        where, fields.NameOf("text"), KeysOf(json));
  }
  SHOAL_ASSIGN_OR_RETURN(sample.text, fields.String("text"));
  return absl::OkStatus();
}

absl::Status ParseConversation(std::string_view line, const JsonlOptions& options,
                               const Fields& fields, const Json& json, const JsonObject& object,
                               JsonlSample& sample) {
  const std::string& where = object.where();
  if (fields.Has("messages")) {
    SHOAL_ASSIGN_OR_RETURN(const Json* list, fields.Array("messages"));
    SHOAL_ASSIGN_OR_RETURN(sample.messages, ParseMessages(*list, where));
    return TakeMore(line, *list, fields.NameOf("messages"), where, sample);
  }
  if (fields.Has("input_ids")) {
    return ParseTokens(fields, options.vocabulary, where, sample);
  }
  if (fields.Has("prompt") || fields.Has("completion")) {
    SHOAL_ASSIGN_OR_RETURN(std::string prompt, fields.String("prompt"));
    SHOAL_ASSIGN_OR_RETURN(std::string completion, fields.String("completion"));
    sample.messages = {{Role::kUser, std::move(prompt)}, {Role::kAssistant, std::move(completion)}};
    return absl::OkStatus();
  }
  if (object.Find("conversations") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(sample.messages, ParseShareGpt(object));
    return absl::OkStatus();
  }
  if (object.Find("instruction") != nullptr && object.Find("output") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(sample.messages, ParseAlpaca(object));
    return absl::OkStatus();
  }
  if (fields.Has("chosen") && fields.Has("rejected")) {
    return InvalidArgument("{}: this is a pair of replies, which train.objective: dpo takes",
                           where);
  }
  if (fields.Has("text")) {
    return InvalidArgument(
        "{}: this looks like a document, which train.objective: pretrain takes; else give a prompt "
        "and a completion, or messages, or input_ids and labels",
        where);
  }
  return InvalidArgument(
      "{}: none of '{}', '{}' or '{}' is there, but {}; name the file's fields with data.fields, "
      "e.g. {{prompt: question, completion: answer}}",
      where, fields.NameOf("messages"), fields.NameOf("prompt"), fields.NameOf("input_ids"),
      KeysOf(json));
}

// A text, or a list of messages with what else is said of them.
absl::StatusOr<PairText> ParsePairText(std::string_view line, const Fields& fields,
                                       const std::string& field, const JsonObject& object,
                                       nlohmann::ordered_json& tools) {
  const std::string name = fields.NameOf(field);
  const Json* value = object.Find(name);
  if (value == nullptr || !value->is_array()) {
    return fields.String(field);
  }
  const std::string where = fmt::format("{}: {}", object.where(), name);
  JsonlSample sample;
  SHOAL_ASSIGN_OR_RETURN(sample.messages, ParseMessages(*value, where));
  SHOAL_RETURN_IF_ERROR(TakeMore(line, *value, name, object.where(), sample));
  tools = std::move(sample.tools);
  return std::move(sample.messages);
}

absl::Status ParsePair(std::string_view line, const Fields& fields, const Json& json,
                       const JsonObject& object, JsonlSample& sample) {
  if (!fields.Has("chosen") || !fields.Has("rejected")) {
    return InvalidArgument(
        "{}: no '{}' and '{}' are there, but {}; train.objective: dpo takes pairs, and data.fields "
        "may name the file's, e.g. {{chosen: better, rejected: worse}}",
        object.where(), fields.NameOf("chosen"), fields.NameOf("rejected"), KeysOf(json));
  }
  PairSides sides;
  if (fields.Has("prompt")) {
    SHOAL_ASSIGN_OR_RETURN(sides.prompt,
                           ParsePairText(line, fields, "prompt", object, sample.tools));
  }
  SHOAL_ASSIGN_OR_RETURN(sides.chosen, ParsePairText(line, fields, "chosen", object, sample.tools));
  SHOAL_ASSIGN_OR_RETURN(sides.rejected,
                         ParsePairText(line, fields, "rejected", object, sample.tools));
  absl::StatusOr<Pair> pair = PairOf(std::move(sides));
  if (!pair.ok()) {
    return Annotate(pair.status(), object.where());
  }
  sample.messages = std::move(pair->chosen);
  sample.rejected = std::move(pair->rejected);
  return absl::OkStatus();
}

absl::Status ParseSample(std::string_view line, const JsonlOptions& options, const Fields& fields,
                         const Json& json, const JsonObject& object, JsonlSample& sample) {
  switch (options.objective) {
    case plan::Objective::kPretrain:
      return ParseDocument(fields, object.where(), json, sample);
    case plan::Objective::kDpo:
      return ParsePair(line, fields, json, object, sample);
    default:
      return ParseConversation(line, options, fields, json, object, sample);
  }
}

}  // namespace

absl::Status CheckFields(const std::map<std::string, std::string>& fields) {
  for (const auto& [ours, theirs] : fields) {
    if (std::find(kFields.begin(), kFields.end(), ours) == kFields.end()) {
      return InvalidArgument(
          "data.fields: unknown name '{}'; known are messages, prompt, completion, chosen, "
          "rejected, input_ids, labels, weight, weights, answer and text",
          ours);
    }
    if (theirs.empty()) {
      return InvalidArgument("data.fields: the name for '{}' is empty", ours);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonlSample> ParseJsonlLine(std::string_view line, const JsonlOptions& options,
                                           std::string_view where) {
  const auto parsed = ParseJson(line, where);
  if (!parsed.ok() || !parsed->is_object()) {
    const std::string hint = KnownFile(line);
    const absl::Status status =
        parsed.ok() ? JsonObject::From(*parsed, std::string(where)).status() : parsed.status();
    return InvalidArgument("{}{}{}", Message(status), hint.empty() ? "" : "; ", hint);
  }
  const Json& json = *parsed;
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, std::string(where)));
  const Fields fields(object, options);
  JsonlSample sample;
  SHOAL_RETURN_IF_ERROR(ParseSample(line, options, fields, json, object, sample));
  if (const std::string name = fields.NameOf("weight");
      options.fields.contains("weight") || !fields.IsTaken(name)) {
    SHOAL_ASSIGN_OR_RETURN(sample.weight, WeightOf(object, name));
  }
  sample.answer = fields.Answer();
  return sample;
}

}  // namespace shoal::worker
