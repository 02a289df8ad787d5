// Conversations: what samples hold and templates write.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {

enum class Role { kSystem, kUser, kAssistant, kTool };
absl::StatusOr<Role> ParseRole(std::string_view name);
std::string_view Name(Role role);

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  // An object of what else a sample says of it, as a model's own template sees it: tool_calls,
  // reasoning_content, and content itself where that is a list. Null: nothing.
  nlohmann::ordered_json more = nullptr;
  float weight = 1;  // of what is learnt of it; 0: nothing is

  bool operator==(const ChatMessage&) const = default;
};

// How much of a message's content is reasoning: what is before its last "</think>".
size_t BytesOfReasoning(std::string_view content);

struct Conversation {
  std::vector<int32_t> tokens;
  std::vector<float> weights;  // by token: of the loss of predicting it; 0: it is not learnt
  int64_t silent = 0;          // messages of the assistant of which the template wrote nothing
  bool rewritten = false;      // its first reply would be another if the conversation ended there
};

}  // namespace shoal::worker
