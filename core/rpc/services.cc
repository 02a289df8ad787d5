// Puts the classes that services implement behind gRPC.
#include <grpc/grpc_security_constants.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <exception>
#include <list>
#include <optional>
#include <string_view>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/rpc/access.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/grpc_support.h"
#include "core/rpc/held_calls.h"
#include "core/rpc/parameter_server_service.h"
#include "core/rpc/server.h"
#include "core/rpc/stage_service.h"

namespace shoal::rpc {
namespace {

bool HasToken(const Token& token, const grpc::ServerContextBase& context) {
  constexpr std::string_view kPrefix = "Bearer ";
  const auto& metadata = context.client_metadata();
  const auto entry = metadata.find("authorization");
  if (entry == metadata.end()) {
    return false;
  }
  const std::string_view value(entry->second.data(), entry->second.size());
  return value.starts_with(kPrefix) && token.Matches(value.substr(kPrefix.size()));
}

// Of a connection over TLS; who it is was checked when it began.
absl::StatusOr<Role> RoleOfCaller(const grpc::ServerContextBase& context) {
  const auto names = context.auth_context()->FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
  const auto name = names.empty() ? grpc::string_ref() : names.front();
  SHOAL_ASSIGN_OR_RETURN(const Identity caller,
                         ParseIdentity(std::string_view(name.data(), name.size())));
  return caller.role;
}

template <typename Request>
absl::Status CheckRole(Role role) {
  if (std::ranges::find(CallersOf<Request>::kAll, role) == std::end(CallersOf<Request>::kAll)) {
    return PermissionDenied("by its certificate the caller is a {}, which may not call {}",
                            RoleName(role), MethodTaking(*Request::descriptor()).name());
  }
  return absl::OkStatus();
}

template <typename Request>
absl::Status Refuse(const Security& security, const grpc::ServerContextBase& context,
                    Refusals::Reason reason, const absl::Status& why) {
  return security.refusals().Refuse(
      reason,
      fmt::format("{} from {}", MethodTaking(*Request::descriptor()).name(), context.peer()), why);
}

absl::Status NoToken(bool commands) {
  return commands ? Unauthenticated(
                        "the call does not show what this server said to its coordinator "
                        "when it registered: nobody else may command it")
                  : Unauthenticated(
                        "the call has no token, or another one than this process was "
                        "started with; give all processes of a job the same --token-file "
                        "or {}",
                        kTokenVariable);
}

// Whether this caller may make this call, by what comes before the request. Returns who it is by
// its certificate; without TLS nobody.
template <typename Request>
absl::StatusOr<std::optional<Role>> CheckCaller(const Security& security,
                                                const grpc::ServerContextBase& context) {
  constexpr bool kCommands = IsCommand<Request>();
  if (!HasToken(kCommands ? security.command_token() : security.token(), context)) {
    return Refuse<Request>(security, context, Refusals::Reason::kToken, NoToken(kCommands));
  }
  if (!security.encrypted()) {
    return std::nullopt;
  }
  SHOAL_ASSIGN_OR_RETURN(const Role role, RoleOfCaller(context));
  if (const absl::Status may = CheckRole<Request>(role); !may.ok()) {
    return Refuse<Request>(security, context, Refusals::Reason::kRole, may);
  }
  return role;
}

// Whether a caller that may make the call says in it who it is.
template <typename Request>
absl::Status CheckRequest(const Security& security, const grpc::ServerContextBase& context,
                          std::optional<Role> caller, const Request& request) {
  if (!caller.has_value() || SaysItsRole(request, *caller)) {
    return absl::OkStatus();
  }
  return Refuse<Request>(
      security, context, Refusals::Reason::kRole,
      PermissionDenied("by its certificate the caller is a {}, and it registers as another",
                       RoleName(*caller)));
}

// An exception (such as out of memory) ends only the call.
template <typename Method>
absl::Status Catching(Method method) {
  try {
    return method();
  } catch (const std::exception& error) {
    return Internal("unexpected exception: {}", error.what());
  }
}

// Reads the request, and runs `method` (of it; returns absl::Status), if the caller may. Of a
// caller that may not nothing is read, and so nothing is held: gRPC keeps what arrives of a message
// that it was asked for, however large, until all is there.
template <typename Request, typename Reader, typename Method>
grpc::Status Guard(const Security& security, const grpc::ServerContextBase& context, Reader& reader,
                   Method method) {
  const absl::StatusOr<std::optional<Role>> caller = CheckCaller<Request>(security, context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  return ToGrpc(Catching([&]() -> absl::Status {
    Request request;
    if (!reader.Read(&request)) {
      return Internal("the call has no request, or one that cannot be read");
    }
    SHOAL_RETURN_IF_ERROR(CheckRequest(security, context, *caller, request));
    return method(request);
  }));
}

// The methods of `T`, one per rpc of a proto's service. All take a stream, which is the same on the
// wire: gRPC would read the one request of any other before it calls a handler.
template <typename T>
class GrpcService final : public grpc::Service, public Service {
 public:
  template <typename... Methods>
  explicit GrpcService(T* service, Methods... methods) : service_(*service) {
    (Add(methods), ...);
    SHOAL_CHECK(static_cast<int>(paths_.size()) == described_->method_count());
  }
  grpc::Service* grpc_service() override { return this; }
  void EndHeldCalls() override { held_.EndAll(); }

 private:
  template <typename Request, typename Reply>
  void Add(absl::StatusOr<Reply> (T::*method)(const Request&)) {
    AddHandler<Request>(
        grpc::internal::RpcMethod::CLIENT_STREAMING,
        new grpc::internal::ClientStreamingHandler<GrpcService, Request, Reply>(
            [method](GrpcService* self, grpc::ServerContext* context,
                     grpc::ServerReader<Request>* reader, Reply* reply) {
              return Guard<Request>(
                  self->security(), *context, *reader, [&](const Request& request) -> absl::Status {
                    SHOAL_ASSIGN_OR_RETURN(*reply, (self->service_.*method)(request));
                    return absl::OkStatus();
                  });
            },
            this));
  }

  template <typename Request, typename Event>
  void Add(absl::Status (T::*method)(const Request&, const EventStream<Event>&)) {
    AddHandler<Request>(
        grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::BidiStreamingHandler<GrpcService, Request, Event>(
            [method](GrpcService* self, grpc::ServerContext* context,
                     grpc::ServerReaderWriter<Event, Request>* stream) {
              return Guard<Request>(
                  self->security(), *context, *stream, [&](const Request& request) {
                    const EventStream<Event> events = {
                        .write = [&](const Event& event) { return stream->Write(event); },
                        .gone = [&] { return context->IsCancelled(); }};
                    return (self->service_.*method)(request, events);
                  });
            },
            this));
  }

  template <typename Request, typename Reply>
  void Add(absl::StatusOr<HeldCall<Reply>> (T::*method)(const Request&)) {
    AddHandler<Request>(grpc::internal::RpcMethod::CLIENT_STREAMING, nullptr);
    MarkMethodCallback(
        static_cast<int>(paths_.size()) - 1,
        new grpc::internal::CallbackClientStreamingHandler<Request, Reply>(
            [this, method](grpc::CallbackServerContext* context, Reply* /*reply*/) {
              const auto caller = CheckCaller<Request>(security(), *context);
              return new HeldReactor<Request>(
                  held_, caller.status(),
                  [this, context, caller,
                   method](const Request& request) -> absl::StatusOr<std::function<void()>> {
                    SHOAL_RETURN_IF_ERROR(CheckRequest(security(), *context, *caller, request));
                    HeldCall<Reply> held;
                    SHOAL_RETURN_IF_ERROR(Catching([&]() -> absl::Status {
                      SHOAL_ASSIGN_OR_RETURN(held, (service_.*method)(request));
                      return absl::OkStatus();
                    }));
                    return std::move(held.on_end);
                  });
            }));
  }

  template <typename Request>
  void AddHandler(grpc::internal::RpcMethod::RpcType type, grpc::internal::MethodHandler* handler) {
    const google::protobuf::MethodDescriptor& method = MethodTaking(*Request::descriptor());
    SHOAL_CHECK(method.server_streaming() == (type == grpc::internal::RpcMethod::BIDI_STREAMING));
    described_ = method.service();
    paths_.push_back(MethodPath(method));
    AddMethod(new grpc::internal::RpcServiceMethod(paths_.back().c_str(), type, handler));
  }

  T& service_;
  HeldCalls held_;
  const google::protobuf::ServiceDescriptor* described_ = nullptr;
  std::list<std::string> paths_;  // gRPC keeps pointers to them
};

}  // namespace

std::unique_ptr<Service> MakeCoordinatorService(CoordinatorService* service) {
  using S = CoordinatorService;
  return std::make_unique<GrpcService<S>>(
      service, &S::SubmitJob, &S::StopJob, &S::GetStatus, &S::ListJobs, &S::ReadLog, &S::Scale,
      &S::Register, &S::RenewLease, &S::Leave, &S::HoldConnection, &S::JoinJob, &S::NextStep,
      &S::DrawMicrobatch, &S::WatchJob);
}

std::unique_ptr<Service> MakeParameterServerService(ParameterServerService* service) {
  using S = ParameterServerService;
  return std::make_unique<GrpcService<S>>(
      service, &S::TakeOver, &S::Configure, &S::BeginAttempt, &S::Prepare, &S::Commit,
      &S::WriteCheckpoint, &S::GetChecksums, &S::AdmitClients, &S::FenceClient, &S::ReleaseJob,
      &S::Reserve, &S::Fetch, &S::Replicate, &S::ReadState, &S::ConnectState, &S::TakeGradient,
      &S::Connect);
}

std::unique_ptr<Service> MakeStageService(StageService* service) {
  return std::make_unique<GrpcService<StageService>>(service, &StageService::ConnectStage,
                                                     &StageService::JoinRendezvous);
}

}  // namespace shoal::rpc
