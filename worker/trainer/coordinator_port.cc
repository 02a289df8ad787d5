#include "worker/trainer/coordinator_port.h"

namespace shoal::worker {
namespace {

// Longer than a long poll waits, so that its answer is not cut off.
constexpr absl::Duration kAnswerMargin = absl::Seconds(5);
constexpr absl::Duration kLeaveDeadline = absl::Seconds(2);

class GrpcCoordinatorPort final : public CoordinatorPort {
 public:
  explicit GrpcCoordinatorPort(std::shared_ptr<rpc::Channel> channel)
      : client_(std::move(channel)) {}

  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) override {
    return client_.Register(request, {.wait_for_connection = true});
  }
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(
      const proto::RenewLeaseRequest& request) override {
    return client_.RenewLease(request, {.deadline = absl::Seconds(2)});
  }
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request) override {
    return client_.Leave(request, {.deadline = kLeaveDeadline});
  }
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) override {
    return client_.JoinJob(request,
                           {.deadline = absl::Seconds(request.wait_seconds()) + kAnswerMargin});
  }
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) override {
    return client_.NextStep(request,
                            {.deadline = absl::Seconds(request.wait_seconds()) + kAnswerMargin});
  }

 private:
  rpc::CoordinatorClient client_;
};

}  // namespace

std::unique_ptr<CoordinatorPort> MakeGrpcCoordinatorPort(std::shared_ptr<rpc::Channel> channel) {
  return std::make_unique<GrpcCoordinatorPort>(std::move(channel));
}

}  // namespace shoal::worker
