// Puts the classes that services implement behind gRPC.
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include <exception>
#include <list>
#include <string_view>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/grpc_support.h"
#include "core/rpc/parameter_server_service.h"
#include "core/rpc/server.h"
#include "core/rpc/stage_service.h"

namespace shoal::rpc {
namespace {

using google::protobuf::MessageLite;

bool Authorized(const Token& token, const grpc::ServerContext& context) {
  constexpr std::string_view kPrefix = "Bearer ";
  const auto& metadata = context.client_metadata();
  const auto entry = metadata.find("authorization");
  if (entry == metadata.end()) {
    return false;
  }
  const std::string_view value(entry->second.data(), entry->second.size());
  return value.starts_with(kPrefix) && token.Matches(value.substr(kPrefix.size()));
}

// Runs `method` (which returns absl::Status) if the caller presented the token. An exception (such
// as out of memory) ends only the call.
template <typename Method>
grpc::Status Guard(const Token& token, const grpc::ServerContext& context, Method method) {
  if (!Authorized(token, context)) {
    return ToGrpc(Unauthenticated(
        "the call has no token, or another one than this process was started with; give all "
        "processes of a job the same --token-file or {}",
        kTokenVariable));
  }
  try {
    return ToGrpc(method());
  } catch (const std::exception& error) {
    return ToGrpc(Internal("unexpected exception: {}", error.what()));
  }
}

// The methods of `T`, one per rpc of a proto's service.
template <typename T>
class GrpcService final : public grpc::Service, public Service {
 public:
  template <typename... Methods>
  explicit GrpcService(T* service, Methods... methods) : service_(*service) {
    (Add(methods), ...);
    SHOAL_CHECK(static_cast<int>(paths_.size()) == described_->method_count());
  }
  grpc::Service* grpc_service() override { return this; }

 private:
  template <typename Request, typename Reply>
  void Add(absl::StatusOr<Reply> (T::*method)(const Request&)) {
    AddHandler<Request>(
        grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<GrpcService, Request, Reply, MessageLite, MessageLite>(
            [method](GrpcService* self, grpc::ServerContext* context, const Request* request,
                     Reply* reply) {
              return Guard(self->token(), *context, [&]() -> absl::Status {
                SHOAL_ASSIGN_OR_RETURN(*reply, (self->service_.*method)(*request));
                return absl::OkStatus();
              });
            },
            this));
  }

  template <typename Request, typename Event>
  void Add(absl::Status (T::*method)(const Request&, const EventStream<Event>&)) {
    AddHandler<Request>(
        grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::ServerStreamingHandler<GrpcService, Request, Event>(
            [method](GrpcService* self, grpc::ServerContext* context, const Request* request,
                     grpc::ServerWriter<Event>* writer) {
              return Guard(self->token(), *context, [&] {
                const EventStream<Event> events = {
                    .write = [&](const Event& event) { return writer->Write(event); },
                    .gone = [&] { return context->IsCancelled(); }};
                return (self->service_.*method)(*request, events);
              });
            },
            this));
  }

  template <typename Request>
  void AddHandler(grpc::internal::RpcMethod::RpcType type, grpc::internal::MethodHandler* handler) {
    const google::protobuf::MethodDescriptor& method = MethodTaking(*Request::descriptor());
    SHOAL_CHECK(method.server_streaming() == (type == grpc::internal::RpcMethod::SERVER_STREAMING));
    described_ = method.service();
    paths_.push_back(MethodPath(method));
    AddMethod(new grpc::internal::RpcServiceMethod(paths_.back().c_str(), type, handler));
  }

  T& service_;
  const google::protobuf::ServiceDescriptor* described_ = nullptr;
  std::list<std::string> paths_;  // gRPC keeps pointers to them
};

}  // namespace

std::unique_ptr<Service> MakeCoordinatorService(CoordinatorService* service) {
  using S = CoordinatorService;
  return std::make_unique<GrpcService<S>>(
      service, &S::SubmitJob, &S::StopJob, &S::GetStatus, &S::ListJobs, &S::ReadLog, &S::Register,
      &S::RenewLease, &S::Leave, &S::JoinJob, &S::NextStep, &S::DrawMicrobatch, &S::WatchJob);
}

std::unique_ptr<Service> MakeParameterServerService(ParameterServerService* service) {
  using S = ParameterServerService;
  return std::make_unique<GrpcService<S>>(
      service, &S::TakeOver, &S::Configure, &S::BeginAttempt, &S::Prepare, &S::Commit,
      &S::WriteCheckpoint, &S::GetChecksums, &S::FenceClient, &S::ReleaseJob, &S::Connect);
}

std::unique_ptr<Service> MakeStageService(StageService* service) {
  return std::make_unique<GrpcService<StageService>>(service, &StageService::ConnectStage,
                                                     &StageService::JoinRendezvous);
}

}  // namespace shoal::rpc
