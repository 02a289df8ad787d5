// Who a process is, by the SPIFFE name in its certificate:
//
//   spiffe://shoal.local/ns/NAMESPACE/sa/shoal-server
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shoal::rpc {

enum class Role { kCoordinator, kServer, kWorker, kClient };
inline constexpr Role kRoles[] = {Role::kCoordinator, Role::kServer, Role::kWorker, Role::kClient};
// "coordinator", "server", "worker", "client".
const char* RoleName(Role role);

inline constexpr const char* kDefaultDomain = "shoal.local";

struct Identity {
  std::string domain = kDefaultDomain;
  std::string name_space;  // processes of one know each other, and nobody else
  Role role = Role::kClient;

  bool operator==(const Identity&) const = default;
};
std::string UriOf(const Identity& identity);
// InvalidArgument if it is no such name.
absl::StatusOr<Identity> ParseIdentity(std::string_view uri);

}  // namespace shoal::rpc
