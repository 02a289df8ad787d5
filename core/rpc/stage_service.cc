#include "core/rpc/stage_service.h"

#include "core/rpc/internal_service.h"
#include "proto/worker.grpc.pb.h"

namespace shoal::rpc {
namespace {

class StageAdapter final : public proto::Stage::Service, public Service {
 public:
  explicit StageAdapter(StageService* service) : service_(*service) {}
  grpc::Service* grpc_service() override { return this; }

  grpc::Status ConnectStage(grpc::ServerContext* context, const proto::ConnectStageRequest* request,
                            proto::ConnectStageReply* reply) override {
    return internal::Serve(*this, *context, service_, &StageService::ConnectStage, *request,
                           *reply);
  }

  grpc::Status JoinRendezvous(grpc::ServerContext* context,
                              const proto::JoinRendezvousRequest* request,
                              proto::JoinRendezvousReply* reply) override {
    return internal::Serve(*this, *context, service_, &StageService::JoinRendezvous, *request,
                           *reply);
  }

 private:
  StageService& service_;
};

}  // namespace

std::unique_ptr<Service> MakeStageService(StageService* service) {
  return std::make_unique<StageAdapter>(service);
}

}  // namespace shoal::rpc
