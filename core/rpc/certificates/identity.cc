#include "core/rpc/certificates/identity.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::rpc {
namespace {

constexpr std::string_view kScheme = "spiffe://";
constexpr std::string_view kNamespace = "/ns/";
constexpr std::string_view kAccount = "/sa/shoal-";
constexpr size_t kLongestUri = 2048;  // SPIFFE's

// As domains and namespaces of Kubernetes are written.
bool IsName(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

// Returns what stands before `end`, and leaves `text` behind it.
std::string_view TakeUntil(std::string_view end, std::string_view& text) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + end.size(), text.size()));
  return taken;
}

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kClient:
      return "client";
  }
  return "";
}

std::string UriOf(const Identity& identity) {
  return fmt::format("{}{}{}{}{}{}", kScheme, identity.domain, kNamespace, identity.name_space,
                     kAccount, RoleName(identity.role));
}

absl::StatusOr<Identity> ParseIdentity(std::string_view uri) {
  if (uri.size() <= kLongestUri && uri.starts_with(kScheme)) {
    std::string_view rest = uri.substr(kScheme.size());
    const std::string_view domain = TakeUntil(kNamespace, rest);
    const std::string_view name_space = TakeUntil(kAccount, rest);
    const auto* const role =
        std::ranges::find_if(kRoles, [&](Role known) { return rest == RoleName(known); });
    if (IsName(domain) && IsName(name_space) && role != std::end(kRoles)) {
      return Identity{std::string(domain), std::string(name_space), *role};
    }
  }
  return InvalidArgument(
      "'{}' is not spiffe://DOMAIN/ns/NAMESPACE/sa/shoal-{{coordinator,server,worker,client}}",
      uri.substr(0, 200));
}

}  // namespace shoal::rpc
