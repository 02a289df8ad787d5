#include "core/data/template_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

// By plan::Template.
constexpr std::array<std::string_view, 3> kTexts = {{
    "{{ bos_token or '' }}{% for message in messages %}{{ '' if loop.first else '\\n' }}"
    "{{ message['role'] | capitalize }}:"
    "{{ ' ' + message['content'] if message['content'] else '' }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}",
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}",
}};

constexpr const char* kMore = "/additional_chat_templates";  // templates by name
constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

std::string ConfigIn(const std::string& folder) { return folder + "/tokenizer_config.json"; }
std::string FileIn(const std::string& folder) { return folder + "/chat_template.jinja"; }

// Absent files are empty.
absl::StatusOr<std::string> TextOf(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxTemplateBytes);
  return absl::IsNotFound(text.status()) ? "" : text;
}
absl::StatusOr<Json> JsonOf(const std::string& path) {
  absl::StatusOr<Json> json = ReadJson(path);
  return absl::IsNotFound(json.status()) ? Json::object() : json;
}

// Takes the templates that `json` has under chat_template.
absl::Status TakeTemplates(const Json& json, const std::string& path, TemplateSource& into) {
  const auto own = json.is_object() ? json.find("chat_template") : json.end();
  if (own == json.end() || own->is_null()) {
    return absl::OkStatus();
  }
  into.name = path;
  if (own->is_string()) {
    into.text = own->get<std::string>();
    return absl::OkStatus();
  }
  for (const Json& entry : own->is_array() ? *own : Json::array()) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject object,
                           JsonObject::From(entry, path + ": chat_template"));
    SHOAL_ASSIGN_OR_RETURN(const std::string name, object.String("name"));
    SHOAL_ASSIGN_OR_RETURN(std::string text, object.String("template"));
    if (name == "default") {
      into.name = path + " (default)";
      into.text = std::move(text);
    } else if (name == "tool_use") {
      into.tool_name = path + " (tool_use)";
      into.tool_text = std::move(text);
    }
  }
  return into.text.empty() ? InvalidArgument(
                                 "{}: chat_template is no text, and no list of named "
                                 "ones with one named default",
                                 path)
                           : absl::OkStatus();
}

// bos_token and its kin: texts, or objects that have one as content. One that is null is empty.
void TakeTokens(const Json& config, TemplateSource& into) {
  if (!config.is_object()) {
    return;
  }
  for (const auto& item : config.items()) {
    const Json* text = &item.value();
    if (text->is_object() && text->contains("content")) {
      text = &(*text)["content"];
    }
    if (item.key().ends_with("_token") && (text->is_string() || text->is_null())) {
      into.tokens[item.key()] = text->is_null() ? "" : text->get<std::string>();
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<TemplateSource>> TemplateIn(const std::string& model_folder) {
  TemplateSource own{.name = FileIn(model_folder), .text = "", .tool_text = "", .tokens = {}};
  SHOAL_ASSIGN_OR_RETURN(own.text, TextOf(own.name));
  const std::string config_path = ConfigIn(model_folder);
  SHOAL_ASSIGN_OR_RETURN(const Json config, JsonOf(config_path));
  if (own.text.empty()) {
    SHOAL_RETURN_IF_ERROR(TakeTemplates(config, config_path, own));
  } else {
    own.tool_name = model_folder + kMore + "/tool_use.jinja";
    SHOAL_ASSIGN_OR_RETURN(own.tool_text, TextOf(own.tool_name));
  }
  if (own.text.empty()) {
    const std::string path = model_folder + "/chat_template.json";
    SHOAL_ASSIGN_OR_RETURN(const Json json, JsonOf(path));
    SHOAL_RETURN_IF_ERROR(TakeTemplates(json, path, own));
  }
  if (own.text.empty()) {
    return std::nullopt;
  }
  TakeTokens(config, own);
  return own;
}

absl::StatusOr<TemplateSource> TemplateOf(const std::string& path,
                                          const std::string& model_folder) {
  TemplateSource source{.name = path, .text = "", .tool_text = "", .tokens = {}};
  SHOAL_ASSIGN_OR_RETURN(source.text, ReadFile(path, kMaxTemplateBytes));
  if (source.text.empty()) {
    return InvalidArgument("{}: the template is empty", path);
  }
  SHOAL_ASSIGN_OR_RETURN(const Json config, JsonOf(ConfigIn(model_folder)));
  TakeTokens(config, source);
  return source;
}

std::optional<plan::Template> WrittenAs(std::string_view text) {
  const auto* found = std::find(kTexts.begin(), kTexts.end(), text);
  return found == kTexts.end() ? std::nullopt
                               : std::optional(static_cast<plan::Template>(found - kTexts.begin()));
}

absl::StatusOr<std::string> WriteTemplate(const std::string& model_folder,
                                          const std::string& name) {
  const std::optional<plan::Template> ours = plan::TemplateNamed(name);
  SHOAL_CHECK(ours != plan::Template::kAuto);
  std::string text;
  if (ours.has_value()) {
    text = kTexts[static_cast<size_t>(*ours)];
  } else {
    SHOAL_ASSIGN_OR_RETURN(text, ReadFile(name, kMaxTemplateBytes));
  }
  const auto own = TemplateIn(model_folder);
  const bool replaces = own.ok() && own->has_value() && (*own)->text != text;
  std::error_code error;
  std::filesystem::remove_all(model_folder + kMore, error);
  if (error) {
    return Internal("{}{}: {}", model_folder, kMore, error.message());
  }
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(FileIn(model_folder), text));
  return replaces ? (*own)->name : "";
}

}  // namespace shoal::worker
