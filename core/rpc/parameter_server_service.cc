#include "core/rpc/parameter_server_service.h"

#include "core/rpc/internal_service.h"
#include "proto/server.grpc.pb.h"

namespace shoal::rpc {
namespace {

using internal::Serve;

class ParameterServerAdapter final : public proto::ParameterServer::Service, public Service {
 public:
  explicit ParameterServerAdapter(ParameterServerService* service) : service_(*service) {}
  grpc::Service* grpc_service() override { return this; }

  grpc::Status Configure(grpc::ServerContext* context, const proto::ConfigureRequest* request,
                         proto::ConfigureReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::Configure, *request, *reply);
  }
  grpc::Status BeginAttempt(grpc::ServerContext* context, const proto::BeginAttemptRequest* request,
                            proto::BeginAttemptReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::BeginAttempt, *request,
                 *reply);
  }
  grpc::Status Prepare(grpc::ServerContext* context, const proto::PrepareRequest* request,
                       proto::PrepareReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::Prepare, *request, *reply);
  }
  grpc::Status Commit(grpc::ServerContext* context, const proto::CommitRequest* request,
                      proto::CommitReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::Commit, *request, *reply);
  }
  grpc::Status WriteCheckpoint(grpc::ServerContext* context,
                               const proto::WriteCheckpointRequest* request,
                               proto::WriteCheckpointReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::WriteCheckpoint, *request,
                 *reply);
  }
  grpc::Status GetChecksums(grpc::ServerContext* context, const proto::GetChecksumsRequest* request,
                            proto::GetChecksumsReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::GetChecksums, *request,
                 *reply);
  }
  grpc::Status FenceClient(grpc::ServerContext* context, const proto::FenceClientRequest* request,
                           proto::FenceClientReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::FenceClient, *request, *reply);
  }
  grpc::Status Connect(grpc::ServerContext* context, const proto::ConnectRequest* request,
                       proto::ConnectReply* reply) override {
    return Serve(*this, *context, service_, &ParameterServerService::Connect, *request, *reply);
  }

 private:
  ParameterServerService& service_;
};

}  // namespace

std::unique_ptr<Service> MakeParameterServerService(ParameterServerService* service) {
  return std::make_unique<ParameterServerAdapter>(service);
}

}  // namespace shoal::rpc
