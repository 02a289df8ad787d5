// How the typed clients make calls: only included by the gRPC adapters in this folder.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"

namespace shoal::rpc {

struct Channel::State {
  Token token;
  std::shared_ptr<grpc::Channel> channel;

  absl::Mutex mutex;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  std::set<grpc::ClientContext*> calls ABSL_GUARDED_BY(mutex);

  // Puts deadline and token on the context and lists it for Cancel(). False: the channel was
  // cancelled.
  bool Begin(grpc::ClientContext& context, const CallOptions& options);
  void End(grpc::ClientContext& context);
};

namespace internal {

absl::Status CallError(const Channel& channel, const char* method, const absl::Status& status);

// `Method` is a pointer to the stub's blocking member function.
template <typename Stub, typename Method, typename Request, typename Reply>
absl::Status BlockingCall(Channel& channel, Stub& stub, Method method, const char* name,
                          const Request& request, Reply& reply, const CallOptions& options) {
  grpc::ClientContext context;
  if (!channel.state().Begin(context, options)) {
    return CallError(channel, name, absl::CancelledError("this process is leaving"));
  }
  const absl::Status status = FromGrpc((stub.*method)(&context, request, &reply));
  channel.state().End(context);
  return CallError(channel, name, status);
}

// One call whose answer comes on a thread of gRPC's. `start(context, request, reply, callback)`
// issues it; `done` runs exactly once and never within this function.
template <typename Request, typename Reply, typename Start>
void AsyncCall(const std::shared_ptr<Channel>& channel, const char* name, const Request& request,
               const CallOptions& options, std::function<void(absl::StatusOr<Reply>)> done,
               Start start) {
  struct Call {
    grpc::ClientContext context;
    Request request;
    Reply reply;
    std::function<void(absl::StatusOr<Reply>)> done;
  };
  auto call = std::make_shared<Call>();
  call->request = request;
  call->done = std::move(done);
  if (!channel->state().Begin(call->context, options)) {
    call->context
        .TryCancel();  // The call is made all the same, so that `done` is not run from here.
  }
  start(&call->context, &call->request, &call->reply,
        [channel, call, name](const grpc::Status& grpc_status) {
          const absl::Status status = CallError(*channel, name, FromGrpc(grpc_status));
          if (status.ok()) {
            call->done(std::move(call->reply));
          } else {
            call->done(status);
          }
          channel->state().End(call->context);
        });
}

}  // namespace internal
}  // namespace shoal::rpc
