#include "core/rpc/parameter_server_service.h"

#include "core/rpc/internal_service.h"
#include "proto/server.grpc.pb.h"

namespace shoal::rpc {
namespace {

using internal::Serve;

class ParameterServerAdapter final : public proto::ParameterServer::Service, public Service {
 public:
  explicit ParameterServerAdapter(ParameterServerHandler* handler) : handler_(*handler) {}
  grpc::Service* grpc_service() override { return this; }

  grpc::Status Configure(grpc::ServerContext* context, const proto::ConfigureRequest* request,
                         proto::ConfigureReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::Configure, *request, *reply);
  }
  grpc::Status BeginAttempt(grpc::ServerContext* context, const proto::BeginAttemptRequest* request,
                            proto::BeginAttemptReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::BeginAttempt, *request,
                 *reply);
  }
  grpc::Status Prepare(grpc::ServerContext* context, const proto::PrepareRequest* request,
                       proto::PrepareReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::Prepare, *request, *reply);
  }
  grpc::Status Commit(grpc::ServerContext* context, const proto::CommitRequest* request,
                      proto::CommitReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::Commit, *request, *reply);
  }
  grpc::Status WriteCheckpoint(grpc::ServerContext* context,
                               const proto::WriteCheckpointRequest* request,
                               proto::WriteCheckpointReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::WriteCheckpoint, *request,
                 *reply);
  }
  grpc::Status GetChecksums(grpc::ServerContext* context, const proto::GetChecksumsRequest* request,
                            proto::GetChecksumsReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::GetChecksums, *request,
                 *reply);
  }
  grpc::Status FenceClient(grpc::ServerContext* context, const proto::FenceClientRequest* request,
                           proto::FenceClientReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::FenceClient, *request, *reply);
  }
  grpc::Status Connect(grpc::ServerContext* context, const proto::ConnectRequest* request,
                       proto::ConnectReply* reply) override {
    return Serve(*this, *context, handler_, &ParameterServerHandler::Connect, *request, *reply);
  }

 private:
  ParameterServerHandler& handler_;
};

}  // namespace

std::unique_ptr<Service> MakeParameterServerService(ParameterServerHandler* handler) {
  return std::make_unique<ParameterServerAdapter>(handler);
}

}  // namespace shoal::rpc
