#include "core/data/chat/message.h"

#include <array>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

constexpr std::array<std::string_view, 4> kRoleNames = {"system", "user", "assistant", "tool"};

}  // namespace

absl::StatusOr<Role> ParseRole(std::string_view name) {
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (name == Name(role)) {
      return role;
    }
  }
  return InvalidArgument("unknown role '{}'; known are system, user, assistant and tool", name);
}

std::string_view Name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

size_t BytesOfReasoning(std::string_view content) {
  const size_t end = content.rfind("</think>");
  return end == std::string_view::npos ? 0 : end;
}

}  // namespace shoal::worker
