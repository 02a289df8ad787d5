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

// Which of our templates WriteTemplate wrote as `text`; nullopt if none.
std::optional<plan::Template> WrittenAs(std::string_view text);

// The file of the folder's template that WriteTemplate of `kind` would replace by another; empty if
// none, or it cannot be read.
std::string ReplacedTemplate(const std::string& model_folder, plan::Template kind);

// Makes `kind` (not auto) the folder's own and only one, as chat_template.jinja.
absl::Status WriteTemplate(const std::string& model_folder, plan::Template kind);

}  // namespace shoal::worker
