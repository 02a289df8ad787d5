#include "core/rpc/status_conversion.h"

#include <grpcpp/support/status.h>

#include "core/base/status.h"

namespace shoal::rpc {

grpc::Status ToGrpc(const absl::Status& status) {
  constexpr size_t kMaxMessageBytes =
      2048;  // metadata is limited to 8 KiB, and the message may be percent-encoded
  if (status.ok()) {
    return grpc::Status::OK;
  }
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(Message(status).substr(0, kMaxMessageBytes))};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const int code = status.error_code();
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return {known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
          status.error_message()};
}

}  // namespace shoal::rpc
