// How the gRPC adapters run a service's method: only included by the adapters in this
// folder.
#pragma once

#include <grpcpp/server_context.h>

#include <exception>
#include <string_view>

#include "core/base/status.h"
#include "core/rpc/server.h"
#include "core/rpc/status_conversion.h"

namespace shoal::rpc::internal {

inline bool Authorized(const Service& service, const grpc::ServerContext& context) {
  constexpr std::string_view kPrefix = "Bearer ";
  const auto& metadata = context.client_metadata();
  const auto entry = metadata.find("authorization");
  if (entry == metadata.end()) {
    return false;
  }
  const std::string_view value(entry->second.data(), entry->second.size());
  return value.starts_with(kPrefix) && service.token().Matches(value.substr(kPrefix.size()));
}

// Runs `method` (which returns absl::Status) if the caller presented the token. Every method of
// every service goes through here, so exceptions of libraries that throw (out of memory among them)
// end a call, never the process.
template <typename Method>
grpc::Status Guard(const Service& service, const grpc::ServerContext& context, Method method) {
  if (!Authorized(service, context)) {
    return ToGrpc(Unauthenticated(
        "the call has no token, or another one than this process was started with; give all "
        "processes of a job the same --token-file or {}",
        kTokenVariable));
  }
  try {
    return ToGrpc(method());
  } catch (const std::exception& error) {
    return ToGrpc(Internal("unexpected exception: {}", error.what()));
  }
}

template <typename Implementation, typename Request, typename Reply>
grpc::Status Serve(const Service& service, const grpc::ServerContext& context,
                   Implementation& implementation,
                   absl::StatusOr<Reply> (Implementation::*method)(const Request&),
                   const Request& request, Reply& reply) {
  return Guard(service, context, [&]() -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(reply, (implementation.*method)(request));
    return absl::OkStatus();
  });
}

}  // namespace shoal::rpc::internal
