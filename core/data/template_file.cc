#include "core/data/template_file.h"

#include <array>
#include <string_view>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

struct TemplateText {
  std::string_view mark;  // stands in no template of another kind
  std::string_view jinja;
};

// By plan::Template.
constexpr std::array<TemplateText, 3> kTexts = {{
    {"Assistant:",
     "{{ bos_token or '' }}{% for message in messages %}{{ '' if loop.first else '\\n' }}"
     "{{ message['role'] | capitalize }}:"
     "{{ ' ' + message['content'] if message['content'] else '' }}"
     "{{ eos_token if message['role'] == 'assistant' else '' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}"},
    {"<|im_start|>",
     "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
     "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"<|start_header_id|>",
     "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
     "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
     "{% endif %}"},
}};

std::string FileIn(const std::string& folder) { return folder + "/chat_template.jinja"; }

// Empty if there is none.
absl::StatusOr<std::string> TextIn(const std::string& folder) {
  absl::StatusOr<std::string> text = ReadFile(FileIn(folder));
  if (!absl::IsNotFound(text.status())) {
    return text;
  }
  const std::string config = folder + "/tokenizer_config.json";
  const absl::StatusOr<Json> json = ReadJson(config);
  if (absl::IsNotFound(json.status())) {
    return "";
  }
  SHOAL_RETURN_IF_ERROR(json.status());
  const auto own = json->find("chat_template");
  // A list has templates for several uses, all of one kind.
  return own == json->end() ? "" : own->is_string() ? own->get<std::string>() : own->dump();
}

}  // namespace

absl::StatusOr<std::optional<plan::Template>> TemplateIn(const std::string& model_folder) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, TextIn(model_folder));
  for (size_t kind = kTexts.size(); kind-- > 0;) {
    if (text.find(kTexts[kind].mark) != std::string::npos) {
      return static_cast<plan::Template>(kind);
    }
  }
  return std::nullopt;
}

absl::Status WriteTemplate(const std::string& model_folder, plan::Template kind) {
  SHOAL_CHECK(kind != plan::Template::kAuto);
  SHOAL_ASSIGN_OR_RETURN(const auto own, TemplateIn(model_folder));
  return own == kind ? absl::OkStatus()
                     : WriteFileAtomically(FileIn(model_folder),
                                           std::string(kTexts[static_cast<size_t>(kind)].jinja));
}

}  // namespace shoal::worker
