// The chat template that a model's folder brings, as it lies there.
#pragma once

#include <map>
#include <string>

namespace shoal::worker {

struct TemplateSource {
  std::string name;  // its file, for messages
  std::string text;
  std::string tool_name = {};  // of tool_text
  std::string tool_text;       // what is used where a conversation has tools; empty: text
  // Special tokens by their names in the folder: bos_token, eos_token, ... Empty: it says there is
  // none.
  std::map<std::string, std::string> tokens;
};

}  // namespace shoal::worker
