#include "server/service/moves/server_calls.h"

#include "core/rpc/parameter_server_service.h"

namespace shoal::server {
namespace {

// Of one read; a server that is frozen is lost by its lease.
constexpr absl::Duration kReadDeadline = absl::Seconds(30);
constexpr absl::Duration kConnectDeadline = absl::Seconds(5);
// Who backs a partition up and does not answer fetches the gradient itself.
constexpr absl::Duration kTakeDeadline = absl::Seconds(5);

}  // namespace

GiverCalls CallsOfGiver(const std::string& address, const rpc::Security& security) {
  const std::shared_ptr<rpc::Channel> channel =
      rpc::Channel::Create(address, security, rpc::Role::kServer);
  return {.read =
              [channel](const proto::ReadStateRequest& request) {
                return channel->Call(&rpc::ParameterServerService::ReadState, request,
                                     {.deadline = kReadDeadline});
              },
          .connect =
              [channel](const proto::ConnectStateRequest& request) {
                return channel->Call(&rpc::ParameterServerService::ConnectState, request,
                                     {.deadline = kConnectDeadline});
              }};
}

GradientTaker CallsOfBackup(const std::string& address, const rpc::Security& security) {
  const std::shared_ptr<rpc::Channel> channel =
      rpc::Channel::Create(address, security, rpc::Role::kServer);
  return {.take =
              [channel](const proto::TakeGradientRequest& request) {
                return channel->Call(&rpc::ParameterServerService::TakeGradient, request,
                                     {.deadline = kTakeDeadline});
              },
          .cancel = [channel] { channel->Cancel(); }};
}

}  // namespace shoal::server
