#include "worker/job/coordinator_client.h"

#include "core/rpc/coordinator_service.h"

namespace shoal::worker {
namespace {

// A long poll's answer is not cut off for being a little late.
constexpr absl::Duration kAnswerMargin = absl::Seconds(5);

class GrpcCoordinatorClient final : public CoordinatorClient {
 public:
  explicit GrpcCoordinatorClient(std::shared_ptr<rpc::Channel> channel)
      : channel_(std::move(channel)) {}

  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) override {
    return channel_->Call(&rpc::CoordinatorService::JoinJob, request,
                          {.deadline = absl::Seconds(request.wait_seconds()) + kAnswerMargin});
  }
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) override {
    return channel_->Call(&rpc::CoordinatorService::NextStep, request,
                          {.deadline = absl::Seconds(request.wait_seconds()) + kAnswerMargin});
  }

  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request) override {
    return channel_->Call(&rpc::CoordinatorService::DrawMicrobatch, request,
                          {.deadline = kAnswerMargin});
  }

 private:
  const std::shared_ptr<rpc::Channel> channel_;
};

}  // namespace

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

std::unique_ptr<CoordinatorClient> MakeGrpcCoordinatorClient(
    std::shared_ptr<rpc::Channel> channel) {
  return std::make_unique<GrpcCoordinatorClient>(std::move(channel));
}

}  // namespace shoal::worker
