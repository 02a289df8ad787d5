// Connects lazily to one peer's gRPC service, presents the token, and with TLS makes sure of the
// peer's role; keeps the calls in flight. Thread-safe.
//
// Of peers that stand by for each other, all are given: calls go to one, and to the next where that
// cannot be reached or says that another leads (StandsBy). Who hears that from all of them gets
// Unavailable.
//
// A call names the method by the service's member (coordinator_service.h,
// parameter_server_service.h, stage_service.h):
//
//   channel->Call(&CoordinatorService::Register, request)
//
// Every call has a deadline, and its error names the peer and the method: "coordinator at
// 127.0.0.1:4000: Register: ...".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/rpc/security.h"
#include "google/protobuf/message.h"

namespace shoal::rpc {

template <typename Event>
struct EventStream;  // server.h
template <typename Reply>
struct HeldCall;  // server.h

struct CallOptions {
  absl::Duration deadline = absl::Seconds(10);
  // Waits (within the deadline) for a peer that cannot be reached yet, instead of failing at once
  // with Unavailable.
  bool wait_for_connection = false;
};

// Takes the result of a call that does not block. Runs exactly once, on the thread of all such
// calls, never within CallAsync, and must not block.
template <typename Reply>
using Done = std::function<void(absl::StatusOr<Reply>)>;

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // `target` is HOST:PORT, of several peers with commas; `name` is the peer's in messages,
  // "server-1", or without it its role's.
  // Does not connect yet.
  static std::shared_ptr<Channel> Create(const std::string& target, Security security, Role peer,
                                         const std::string& name = "");
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Blocks until the answer arrives. The deadline must exceed the time for which the method may
  // wait at the peer.
  template <typename Service, typename Request, typename Reply>
  absl::StatusOr<Reply> Call(absl::StatusOr<Reply> (Service::*)(const Request&),
                             const std::type_identity_t<Request>& request,
                             const CallOptions& options = {}) {
    Reply reply;
    SHOAL_RETURN_IF_ERROR(CallAndWait(request, reply, options));
    return reply;
  }

  template <typename Service, typename Request, typename Reply>
  void CallAsync(absl::StatusOr<Reply> (Service::*)(const Request&),
                 const std::type_identity_t<Request>& request, const CallOptions& options,
                 std::type_identity_t<Done<Reply>> done) {
    auto messages = std::make_shared<std::pair<Request, Reply>>(request, Reply());
    Start(messages->first, messages->second, options,
          [messages, done = std::move(done)](const absl::Status& status) {
            status.ok() ? done(std::move(messages->second)) : done(status);
          });
  }

  // Begins a call that the peer does not answer; `on_end` gets why it is over, as CallAsync's done
  // does. Returns the call's number, for Cancel.
  template <typename Service, typename Request, typename Reply>
  int64_t Hold(absl::StatusOr<HeldCall<Reply>> (Service::*)(const Request&),
               const std::type_identity_t<Request>& request,
               std::function<void(const absl::Status&)> on_end) {
    auto messages = std::make_shared<std::pair<Request, Reply>>(request, Reply());
    return Start(
        messages->first, messages->second, {.deadline = absl::InfiniteDuration()},
        [messages, on_end = std::move(on_end)](const absl::Status& status) { on_end(status); });
  }
  // Ends that call, if it still goes on.
  void Cancel(int64_t call);

  // CallAsync for messages of any type, which must live until `done` runs. Returns the call's
  // number.
  int64_t Start(const google::protobuf::Message& request, google::protobuf::Message& reply,
                const CallOptions& options, std::function<void(const absl::Status&)> done);

  // Calls on_event for each event that the method writes until it ends (OK), the connection breaks
  // (an error), or on_event returns false (OK). `options.deadline` bounds the whole stream.
  template <typename Service, typename Request, typename Event>
  absl::Status Watch(absl::Status (Service::*)(const Request&, const EventStream<Event>&),
                     const std::type_identity_t<Request>& request,
                     const std::type_identity_t<std::function<bool(const Event&)>>& on_event,
                     const CallOptions& options) {
    Event event;
    return ReadEvents(
        request, event, [&] { return on_event(event); }, options);
  }

  // Ends calls in flight, and later ones, with Cancelled: a process leaves without waiting for a
  // peer.
  void Cancel();

 private:
  using Message = google::protobuf::Message;
  struct Peer;
  struct State;

  Channel(const std::string& target, Security security, Role peer, const std::string& name);
  absl::Status CallAndWait(const Message& request, Message& reply, const CallOptions& options);
  absl::Status ReadEvents(const Message& request, Message& event,
                          const std::function<bool()>& on_event, const CallOptions& options);
  absl::Status CallOne(const Peer& peer, const Message& request, Message& reply,
                       const CallOptions& options);
  absl::Status CallError(const Peer& peer, const Message& request,
                         const absl::Status& status) const;
  // Where calls go now.
  const Peer& Current() const;
  // Calls go to another peer than this one from now on, where what it answered says so.
  void TurnFrom(const Peer& peer, const absl::Status& status);

  const std::unique_ptr<State> state_;
};

// Repeats `call` with the options that it is given, `patience` long, while it finds that the peer
// cannot be reached. `tell` hears of the first failure at once, with the time that was left; `stop`
// ends the tries with Cancelled, and may be empty. Returns the last answer.
absl::Status CallPatiently(absl::Duration patience,
                           const std::function<absl::Status(const CallOptions&)>& call,
                           const std::function<void(const absl::Status&, absl::Duration)>& tell,
                           const std::function<bool()>& stop = nullptr);

// What a coordinator answers that stands by for another: FAILED_PRECONDITION, with the leader's
// address. `leader`: HOST:PORT; empty: nobody leads at the moment.
absl::Status StandsBy(const std::string& leader);
// The leader's address; nullopt: the status says nothing of one.
std::optional<std::string> LeaderIn(const absl::Status& status);
// Puts it into a status that came over the wire.
void SetLeader(absl::Status& status, const std::string& leader);

}  // namespace shoal::rpc
