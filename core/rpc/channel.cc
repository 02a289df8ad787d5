#include "core/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/time/clock.h"
#include "core/rpc/grpc_log.h"
#include "core/rpc/internal_call.h"
#include "core/rpc/limits.h"

namespace shoal::rpc {
namespace {

// A connection that breaks for a moment must not end a job: all calls but SubmitJob may be repeated
// (see the proto), and gRPC does so after about 0.1, 0.2 and 0.4 s while the deadline allows. A
// peer that is gone is so found out within a second.
constexpr const char* kServiceConfig = R"({
  "methodConfig": [
    {"name": [{"service": "shoal.proto.Coordinator", "method": "SubmitJob"}]},
    {"name": [{"service": "shoal.proto.Coordinator"}, {"service": "shoal.proto.ParameterServer"}],
     "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
         "backoffMultiplier": 2,
                     "retryableStatusCodes": ["UNAVAILABLE"]}}]})";

std::shared_ptr<grpc::Channel> CreateGrpcChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A peer whose machine vanished is noticed within about ten seconds even with no call in flight.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Processes of a job start together: try again soon, and never wait long for one that has just
  // come up.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A proxy in the environment is for the web, not for the processes of a job.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON(kServiceConfig);
  // One connection per Channel: calls of one client never queue behind another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

bool Channel::State::Begin(grpc::ClientContext& context, const CallOptions& options) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + options.deadline));
  context.set_wait_for_ready(options.wait_for_connection);
  context.AddMetadata("authorization", "Bearer " + token.secret());
  absl::MutexLock lock(&mutex);
  calls.insert(&context);
  return !cancelled;
}

void Channel::State::End(grpc::ClientContext& context) {
  absl::MutexLock lock(&mutex);
  calls.erase(&context);
}

Channel::Channel(const std::string& target, Token token, const std::string& peer)
    : target_(target), description_(peer + " at " + target), state_(std::make_unique<State>()) {
  RouteGrpcLogs();
  state_->token = std::move(token);
  state_->channel = CreateGrpcChannel(target);
}

Channel::~Channel() = default;

std::shared_ptr<Channel> Channel::Create(const std::string& target, Token token,
                                         const std::string& peer) {
  return std::shared_ptr<Channel>(new Channel(target, std::move(token), peer));
}

void Channel::Cancel() {
  absl::MutexLock lock(&state_->mutex);
  state_->cancelled = true;
  for (grpc::ClientContext* call : state_->calls) {
    call->TryCancel();
  }
}

absl::Status internal::CallError(const Channel& channel, const char* method,
                                 const absl::Status& status) {
  return status.ok() ? status
                     : Annotate(status, fmt::format("{}: {}", channel.description(), method));
}

}  // namespace shoal::rpc
