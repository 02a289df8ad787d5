// The chat template that lies in a model's folder, as transformers reads and writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/chat/template_source.h"
#include "core/job/job.h"

namespace shoal::worker {

// The folder's own: chat_template.jinja, else chat_template of tokenizer_config.json, a text or a
// list of named ones, else that of chat_template.json. Of several by name "default" is it, and
// "tool_use", which may also lie in additional_chat_templates/, is for conversations with tools.
// nullopt if there is none.
absl::StatusOr<std::optional<TemplateSource>> TemplateIn(const std::string& model_folder);

// The template of a file, with the special tokens of the folder. InvalidArgument if it is empty.
absl::StatusOr<TemplateSource> TemplateOf(const std::string& path, const std::string& model_folder);

// Which of our templates WriteTemplate wrote as `text`; nullopt if none.
std::optional<plan::Template> WrittenAs(std::string_view text);

// Makes `name` (one of ours, or a file's path) the folder's own and only template, as
// chat_template.jinja. Returns the file of the one that was there, if that was another; else empty.
absl::StatusOr<std::string> WriteTemplate(const std::string& model_folder, const std::string& name);

}  // namespace shoal::worker
