#pragma once

namespace shoal::rpc {

// gRPC's own messages go to our log at debug level instead of straight to stderr: what matters in
// them comes back as a status too. Idempotent.
void RouteGrpcLogs();

}  // namespace shoal::rpc
