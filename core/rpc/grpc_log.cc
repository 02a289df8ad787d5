#include "core/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include "core/base/logging.h"

namespace shoal::rpc {

void RouteGrpcLogs() {
  static const bool routed = [] {
    gpr_set_log_function([](gpr_log_func_args* args) { LogDebug("gRPC: {}", args->message); });
    return true;
  }();
  static_cast<void>(routed);
}

}  // namespace shoal::rpc
