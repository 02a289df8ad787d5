#include "core/rpc/channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/net/address.h"
#include "core/base/status.h"
#include "core/rpc/grpc_support.h"

namespace shoal::rpc {
namespace {

constexpr const char* kLeader = "shoal/leader";                     // of a status
constexpr absl::Duration kBetweenRounds = absl::Milliseconds(100);  // of peers, of which none leads

// A brief break of a connection must not end a job: gRPC repeats all calls but SubmitJob (see the
// proto) after about 0.1, 0.2 and 0.4 s while the deadline allows, and so reports within a second
// that a peer is gone. Without that nobody would look whether a connection is made again.
constexpr const char* kServiceConfig = R"({
  "methodConfig": [
    {"name": [{"service": "shoal.proto.Coordinator", "method": "SubmitJob"}]},
    {"name": [{"service": "shoal.proto.Coordinator"}, {"service": "shoal.proto.ParameterServer"},
              {"service": "etcdserverpb.KV"}, {"service": "etcdserverpb.Lease"}],
     "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
         "backoffMultiplier": 2,
                     "retryableStatusCodes": ["UNAVAILABLE"]}}]})";

std::shared_ptr<grpc::Channel> CreateGrpcChannel(const std::string& target,
                                                 const Security& security, Role peer) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A peer whose machine vanished is noticed within about ten seconds even with no call in flight,
  // as long as the connection is kept.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, kIdleTimeoutMs);
  // Processes of a job start at the same time: retry soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A proxy in the environment is for the web, not for a job's processes.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON(kServiceConfig);
  // One connection per Channel: calls of one client never queue behind another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, security.MakeChannelCredentials(peer), arguments);
}

// What a connection fails of that TLS, or the lack of it, is the reason for; empty: something else.
std::string WhyNoConnection(std::string_view message, bool encrypted) {
  // gRPC's words before those of security.cc.
  constexpr std::string_view kRefusedByUs =
      "Custom verification check failed with error: UNAUTHENTICATED: ";
  if (const size_t at = message.find(kRefusedByUs); at != std::string_view::npos) {
    return "it is not who it should be: " + std::string(message.substr(at + kRefusedByUs.size()));
  }
  if (message.ends_with("wrong version number")) {
    return "it does not speak TLS: was it started with --tls?";
  }
  if (message.starts_with("failed to connect") && message.ends_with("Socket closed")) {
    return encrypted ? "it closed the connection at once: its log says why, where it does not take "
                       "this process's certificate"
                     : "it closed the connection at once; it may want TLS: --tls";
  }
  return "";
}

// A host, by its name.
bool IsNotFound(std::string_view message) {
  return message.starts_with("DNS resolution failed") || message.starts_with("C-ares status");
}

// gRPC names resolvers, queries and addresses; what helps is what is wrong.
absl::Status Unreachable(const absl::Status& status, const std::string& target, bool encrypted) {
  const std::string_view message = Message(status);
  if (!absl::IsUnavailable(status)) {
    return status;
  }
  if (const std::string why = WhyNoConnection(message, encrypted); !why.empty()) {
    return absl::UnavailableError(why);
  }
  if (IsNotFound(message)) {
    return Unavailable("cannot find host {}; look at its name, or give its address",
                       HostOf(target));
  }
  if (message.ends_with("Connection refused")) {
    return Unavailable("Connection refused: nothing listens there; is it started, on this port?");
  }
  return status;
}

absl::Status Leaving() { return absl::CancelledError("this process is leaving"); }

// The peer has not seen the request.
bool WasNotSent(const absl::Status& status) {
  const std::string_view message = Message(status);
  return absl::IsUnavailable(status) &&
         (message.starts_with("failed to connect") || IsNotFound(message));
}

// Whether another peer may be asked after this error: as kServiceConfig has it, and where the
// request was not sent.
bool MayAskAnother(const google::protobuf::Message& request, const absl::Status& status) {
  return absl::IsUnavailable(status) &&
         (MethodTaking(*request.GetDescriptor()).name() != "SubmitJob" || WasNotSent(status));
}

using google::protobuf::MessageLite;

}  // namespace

struct Channel::Peer {
  std::string target;
  std::string description;  // "server-1 at 127.0.0.1:4001"
  std::shared_ptr<grpc::Channel> channel;
};

struct Channel::State {
  Security security;
  std::vector<Peer> peers;
  std::atomic<size_t> current = 0;

  absl::Mutex mutex;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  int64_t begun ABSL_GUARDED_BY(mutex) = 0;
  std::map<int64_t, grpc::ClientContext*> calls ABSL_GUARDED_BY(mutex);  // by number

  // Puts deadline and token on the context and lists it for Cancel(). Returns its number; 0, and
  // not listed, if the channel was cancelled.
  int64_t Begin(grpc::ClientContext& context, const CallOptions& options);
  void End(int64_t call);
};

namespace {

// gRPC's name of a method. Must outlive the call.
struct GrpcMethod {
  GrpcMethod(const google::protobuf::Message& request, grpc::internal::RpcMethod::RpcType type)
      : path(MethodPath(MethodTaking(*request.GetDescriptor()))), method(path.c_str(), type) {}
  const std::string path;
  const grpc::internal::RpcMethod method;
};

// A call that does not block.
struct Running {
  std::shared_ptr<Channel> channel;
  grpc::ClientContext context;
  const GrpcMethod method;
  int64_t number = 0;  // at the channel
  std::unique_ptr<grpc::ClientAsyncResponseReader<MessageLite>> reader = nullptr;
  grpc::Status status = {};
  std::function<void(std::unique_ptr<Running>)> end;
};

// Where such calls end: on one thread, as long as the process lives. gRPC's own threads for this
// end with the last channel of the process, which must not go on one of them, and look at what has
// ended every 100 ms only after an idle second.
grpc::CompletionQueue& EndsOfCalls() {
  static auto* const queue = [] {
    auto* const made = new grpc::CompletionQueue;
    std::thread([made] {
      void* tag = nullptr;
      for (bool ok = false; made->Next(&tag, &ok);) {
        std::unique_ptr<Running> call(static_cast<Running*>(tag));
        const auto end = std::move(call->end);
        end(std::move(call));
      }
    }).detach();
    return made;
  }();
  return *queue;
}

}  // namespace

int64_t Channel::State::Begin(grpc::ClientContext& context, const CallOptions& options) {
  context.set_deadline(SteadyDeadline(options.deadline));
  context.set_wait_for_ready(options.wait_for_connection);
  if (!security.token().empty()) {
    context.AddMetadata("authorization", "Bearer " + security.token().secret());
  }
  absl::MutexLock lock(&mutex);
  if (cancelled) {
    return 0;
  }
  calls[++begun] = &context;
  return begun;
}

void Channel::State::End(int64_t call) {
  absl::MutexLock lock(&mutex);
  calls.erase(call);
}

Channel::Channel(const std::string& target, Security security, Role peer, const std::string& name)
    : state_(std::make_unique<State>()) {
  StartGrpc();
  for (const auto& one : absl::StrSplit(target, ',')) {
    Peer& made = state_->peers.emplace_back();
    made.target = std::string(one.data(), one.size());
    made.description =
        fmt::format("{} at {}", name.empty() ? std::string(RoleName(peer)) : name, made.target);
    made.channel = CreateGrpcChannel(made.target, security, peer);
  }
  state_->security = std::move(security);
}

Channel::~Channel() = default;

std::shared_ptr<Channel> Channel::Create(const std::string& target, Security security, Role peer,
                                         const std::string& name) {
  return std::shared_ptr<Channel>(new Channel(target, std::move(security), peer, name));
}

void Channel::Cancel() {
  absl::MutexLock lock(&state_->mutex);
  state_->cancelled = true;
  for (const auto& [number, call] : state_->calls) {
    call->TryCancel();
  }
}

void Channel::Cancel(int64_t call) {
  absl::MutexLock lock(&state_->mutex);
  if (const auto found = state_->calls.find(call); found != state_->calls.end()) {
    found->second->TryCancel();
  }
}

const Channel::Peer& Channel::Current() const { return state_->peers[state_->current]; }

void Channel::TurnFrom(const Peer& peer, const absl::Status& status) {
  const std::vector<Peer>& peers = state_->peers;
  const std::optional<std::string> leader = LeaderIn(status);
  if (!leader.has_value() && !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
    return;
  }
  auto here = static_cast<size_t>(&peer - peers.data());
  const auto named = std::ranges::find(peers, leader.value_or(""), &Peer::target);
  const size_t next =
      named != peers.end() ? static_cast<size_t>(named - peers.begin()) : (here + 1) % peers.size();
  state_->current.compare_exchange_strong(here, next);  // unless another call has
}

absl::Status Channel::CallError(const Peer& peer, const Message& request,
                                const absl::Status& status) const {
  const absl::Status shown = LeaderIn(status).has_value()
                                 ? absl::UnavailableError(status.message())
                                 : Unreachable(status, peer.target, state_->security.encrypted());
  return Annotate(shown, fmt::format("{}: {}", peer.description,
                                     MethodTaking(*request.GetDescriptor()).name()));
}

absl::Status Channel::CallOne(const Peer& peer, const Message& request, Message& reply,
                              const CallOptions& options) {
  grpc::ClientContext context;
  const int64_t call = state_->Begin(context, options);
  if (call == 0) {
    return Leaving();
  }
  const GrpcMethod method(request, grpc::internal::RpcMethod::NORMAL_RPC);
  const absl::Status status = FromGrpc(grpc::internal::BlockingUnaryCall<MessageLite, MessageLite>(
      peer.channel.get(), method.method, &context, request, &reply));
  state_->End(call);
  TurnFrom(peer, status);
  return status;
}

absl::Status Channel::CallAndWait(const Message& request, Message& reply,
                                  const CallOptions& options) {
  const absl::Time deadline = RealClock().Now() + options.deadline;
  const size_t tries = state_->peers.size() + 1;  // one may be asked again that leads by now
  const bool patient = options.wait_for_connection && state_->peers.size() > 1;
  CallOptions one_try = options;
  // It would wait for one that is gone instead of going to the next.
  one_try.wait_for_connection = options.wait_for_connection && !patient;
  for (size_t asked = 1;; ++asked) {
    const Peer& peer = Current();
    const absl::Status status = CallOne(peer, request, reply, one_try);
    one_try.deadline = deadline - RealClock().Now();
    const bool stands_by = LeaderIn(status).has_value();
    const bool elsewhere = (stands_by || MayAskAnother(request, status)) && &Current() != &peer;
    const bool waits = patient && (stands_by || WasNotSent(status));
    if ((!waits && (!elsewhere || asked >= tries)) || one_try.deadline <= kBetweenRounds) {
      return CallError(peer, request, status);
    }
    if (waits && asked % state_->peers.size() == 0) {
      RealClock().SleepFor(kBetweenRounds);
      one_try.deadline -= kBetweenRounds;
    }
  }
}

int64_t Channel::Start(const Message& request, Message& reply, const CallOptions& options,
                       std::function<void(const absl::Status&)> done) {
  const Peer& peer = Current();
  auto call = std::unique_ptr<Running>(
      new Running{.channel = shared_from_this(),
                  .context = {},
                  .method = {request, grpc::internal::RpcMethod::NORMAL_RPC},
                  .end = [&request, &peer, done = std::move(done)](std::unique_ptr<Running> ended) {
                    const absl::Status status = FromGrpc(ended->status);
                    ended->channel->TurnFrom(peer, status);
                    const absl::Status answer = ended->channel->CallError(peer, request, status);
                    ended->channel->state_->End(ended->number);
                    ended.reset();
                    done(answer);
                  }});
  const int64_t number = call->number = state_->Begin(call->context, options);
  if (number == 0) {
    call->context.TryCancel();  // still made, so that `done` does not run within this call
  }
  call->reader.reset(grpc::internal::ClientAsyncResponseReaderHelper::Create<MessageLite>(
      peer.channel.get(), &EndsOfCalls(), call->method.method, &call->context,
      static_cast<const MessageLite&>(request)));
  call->reader->StartCall();
  Running& running = *call.release();  // which EndsOfCalls takes
  running.reader->Finish(&reply, &running.status, &running);
  return number;
}

absl::Status Channel::ReadEvents(const Message& request, Message& event,
                                 const std::function<bool()>& on_event,
                                 const CallOptions& options) {
  const Peer& peer = Current();
  grpc::ClientContext context;
  const int64_t call = state_->Begin(context, options);
  if (call == 0) {
    return CallError(peer, request, Leaving());
  }
  const GrpcMethod method(request, grpc::internal::RpcMethod::SERVER_STREAMING);
  const std::unique_ptr<grpc::ClientReader<MessageLite>> reader(
      grpc::internal::ClientReaderFactory<MessageLite>::Create<MessageLite>(
          peer.channel.get(), method.method, &context, request));
  bool wanted = true;
  while (wanted && reader->Read(&event)) {
    wanted = on_event();
  }
  if (!wanted) {
    context.TryCancel();
  }
  const absl::Status status = FromGrpc(reader->Finish());
  state_->End(call);
  TurnFrom(peer, wanted ? status : absl::OkStatus());
  return wanted ? CallError(peer, request, status) : absl::OkStatus();
}

absl::Status CallPatiently(absl::Duration patience,
                           const std::function<absl::Status(const CallOptions&)>& call,
                           const std::function<void(const absl::Status&, absl::Duration)>& tell,
                           const std::function<bool()>& stop) {
  constexpr absl::Duration kBetweenTries = absl::Milliseconds(300);
  // However little is left: a refusal takes gRPC's own repetitions, most of a second, to show.
  constexpr CallOptions kOneTry = {.deadline = absl::Seconds(5)};
  Clock& clock = RealClock();
  const absl::Time deadline = clock.Now() + patience;
  bool told = false;
  while (!stop || !stop()) {
    const absl::Duration left = deadline - clock.Now();
    absl::Status status = call(kOneTry);
    const bool again = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!again || clock.Now() >= deadline) {
      return status;
    }
    if (!told) {
      tell(status, left);
      told = true;
    }
    clock.SleepFor(kBetweenTries);
  }
  return Cancelled("told to stop");
}

absl::Status StandsBy(const std::string& leader) {
  absl::Status status = FailedPrecondition(
      "it stands by, and {}; name all coordinators of the cluster in --coordinator, with commas",
      leader.empty() ? "none leads at the moment" : leader + " leads");
  SetLeader(status, leader);
  return status;
}

std::optional<std::string> LeaderIn(const absl::Status& status) {
  const auto leader = status.GetPayload(kLeader);
  return leader.has_value() ? std::optional<std::string>(std::string(*leader)) : std::nullopt;
}

void SetLeader(absl::Status& status, const std::string& leader) {
  status.SetPayload(kLeader, absl::Cord(leader));
}

}  // namespace shoal::rpc
