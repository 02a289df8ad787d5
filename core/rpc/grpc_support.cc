#include "core/rpc/grpc_support.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/support/status.h>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"

namespace shoal::rpc {
namespace {

constexpr std::string_view kLeaderDetail = "leader ";  // before its address

}  // namespace

void StartGrpc() {
  static const bool started = [] {
    gpr_set_log_function([](gpr_log_func_args* args) { LogDebug("gRPC: {}", args->message); });
    grpc_init();
    return true;
  }();
  static_cast<void>(started);
}

grpc::Status ToGrpc(const absl::Status& status) {
  // Metadata is limited to 8 KiB, and the message may be percent-encoded.
  constexpr size_t kLongestMessage = 2048;
  if (status.ok()) {
    return grpc::Status::OK;
  }
  const std::optional<std::string> leader = LeaderIn(status);
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(Message(status).substr(0, kLongestMessage)),
          leader.has_value() ? std::string(kLeaderDetail) + *leader : ""};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const int code = status.error_code();
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status known_status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      status.error_message());
  if (const std::string detail = status.error_details(); detail.starts_with(kLeaderDetail)) {
    SetLeader(known_status, detail.substr(kLeaderDetail.size()));
  }
  return known_status;
}

gpr_timespec SteadyDeadline(absl::Duration limit) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(limit), GPR_TIMESPAN));
}

const google::protobuf::MethodDescriptor& MethodTaking(
    const google::protobuf::Descriptor& request) {
  const google::protobuf::FileDescriptor& file = *request.file();
  const google::protobuf::MethodDescriptor* found = nullptr;
  for (int s = 0; s < file.service_count(); ++s) {
    for (int m = 0; m < file.service(s)->method_count(); ++m) {
      const google::protobuf::MethodDescriptor* method = file.service(s)->method(m);
      found = method->input_type() == &request ? method : found;
    }
  }
  SHOAL_CHECK(found != nullptr);
  return *found;
}

std::string MethodPath(const google::protobuf::MethodDescriptor& method) {
  return fmt::format("/{}/{}", method.service()->full_name(), method.name());
}

}  // namespace shoal::rpc
