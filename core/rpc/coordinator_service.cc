#include "core/rpc/coordinator_service.h"

#include "core/rpc/internal_service.h"
#include "proto/coordinator.grpc.pb.h"

namespace shoal::rpc {
namespace {

using internal::Serve;

class GrpcEventStream final : public EventStream {
 public:
  GrpcEventStream(grpc::ServerContext& context, grpc::ServerWriter<proto::JobEvent>& writer)
      : context_(context), writer_(writer) {}
  bool Write(const proto::JobEvent& event) override { return writer_.Write(event); }
  bool gone() const override { return context_.IsCancelled(); }

 private:
  grpc::ServerContext& context_;
  grpc::ServerWriter<proto::JobEvent>& writer_;
};

class CoordinatorAdapter final : public proto::Coordinator::Service, public Service {
 public:
  explicit CoordinatorAdapter(CoordinatorService* service) : service_(*service) {}
  grpc::Service* grpc_service() override { return this; }

  grpc::Status SubmitJob(grpc::ServerContext* context, const proto::SubmitJobRequest* request,
                         proto::SubmitJobReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::SubmitJob, *request, *reply);
  }
  grpc::Status StopJob(grpc::ServerContext* context, const proto::StopJobRequest* request,
                       proto::StopJobReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::StopJob, *request, *reply);
  }
  grpc::Status GetStatus(grpc::ServerContext* context, const proto::GetStatusRequest* request,
                         proto::GetStatusReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::GetStatus, *request, *reply);
  }
  grpc::Status Register(grpc::ServerContext* context, const proto::RegisterRequest* request,
                        proto::RegisterReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::Register, *request, *reply);
  }
  grpc::Status RenewLease(grpc::ServerContext* context, const proto::RenewLeaseRequest* request,
                          proto::RenewLeaseReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::RenewLease, *request, *reply);
  }
  grpc::Status Leave(grpc::ServerContext* context, const proto::LeaveRequest* request,
                     proto::LeaveReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::Leave, *request, *reply);
  }
  grpc::Status JoinJob(grpc::ServerContext* context, const proto::JoinJobRequest* request,
                       proto::JoinJobReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::JoinJob, *request, *reply);
  }
  grpc::Status NextStep(grpc::ServerContext* context, const proto::NextStepRequest* request,
                        proto::NextStepReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::NextStep, *request, *reply);
  }
  grpc::Status DrawMicrobatch(grpc::ServerContext* context,
                              const proto::DrawMicrobatchRequest* request,
                              proto::DrawMicrobatchReply* reply) override {
    return Serve(*this, *context, service_, &CoordinatorService::DrawMicrobatch, *request, *reply);
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const proto::WatchJobRequest* request,
                        grpc::ServerWriter<proto::JobEvent>* writer) override {
    return internal::Guard(*this, *context, [&] {
      GrpcEventStream events(*context, *writer);
      return service_.WatchJob(*request, events);
    });
  }

 private:
  CoordinatorService& service_;
};

}  // namespace

std::unique_ptr<Service> MakeCoordinatorService(CoordinatorService* service) {
  return std::make_unique<CoordinatorAdapter>(service);
}

}  // namespace shoal::rpc
