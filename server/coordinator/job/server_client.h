// Commands the servers of one job: over gRPC (grpc_server_client.h); in tests, in process.
//
// All calls are asynchronous: `done` runs exactly once, on any thread, never within the call.
// Unavailable and Cancelled mean that the server cannot be reached (after retries); any other error
// is the server's refusal. Destruction cancels calls in flight; no `done` runs afterwards.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/parameter_server_service.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

// A member of rpc::ParameterServerService: the method to call.
template <typename Request, typename Reply>
using ServerMethod = absl::StatusOr<Reply> (rpc::ParameterServerService::*)(const Request&);

class ServerClient {
 public:
  virtual ~ServerClient() = default;

  template <typename Request, typename Reply>
  void Call(int server, ServerMethod<Request, Reply> method, std::type_identity_t<Request> request,
            std::type_identity_t<rpc::Done<Reply>> done) {
    auto messages = std::make_shared<std::pair<Request, Reply>>(std::move(request), Reply());
    Start(
        server, messages->first, messages->second,
        [messages, method](rpc::ParameterServerService& service) -> absl::Status {
          SHOAL_ASSIGN_OR_RETURN(messages->second, (service.*method)(messages->first));
          return absl::OkStatus();
        },
        [messages, done = std::move(done)](const absl::Status& status) {
          status.ok() ? done(std::move(messages->second)) : done(status);
        });
  }

 protected:
  using Message = google::protobuf::Message;
  // `here` makes the call to a service in this process. Both messages live until `done` has run.
  virtual void Start(int server, const Message& request, Message& reply,
                     std::function<absl::Status(rpc::ParameterServerService&)> here,
                     std::function<void(const absl::Status&)> done) = 0;
};

// Whether a call's error says that the server cannot be reached. A late answer does not: only its
// lease says that a server is lost.
inline bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status);
}

// Whether it says that there is a later life of the coordinator: a server obeys that, or it has the
// checkpoint folder.
inline bool IsSuperseded(const absl::Status& status) { return absl::IsAborted(status); }

// Whether it says that another process is at the server's address by now: it takes no commands that
// are not for it.
inline bool IsAnotherProcess(const absl::Status& status) { return absl::IsUnauthenticated(status); }

// Makes the client for a job's servers, by index.
using ServerClientFactory =
    std::function<std::shared_ptr<ServerClient>(const std::vector<Member>& servers)>;

}  // namespace shoal::server
