// The chat template that lies in a model's folder, as transformers reads and writes it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/job/job.h"

namespace shoal::worker {

// Which of our templates the folder's own is (chat_template.jinja, else chat_template of
// tokenizer_config.json), by the turns it writes; nullopt if there is none, or another.
absl::StatusOr<std::optional<plan::Template>> TemplateIn(const std::string& model_folder);

// Makes `kind` (not auto) the folder's own, as chat_template.jinja, if it is not already.
absl::Status WriteTemplate(const std::string& model_folder, plan::Template kind);

}  // namespace shoal::worker
