// Calls to the coordinator, with deadline, token and errors that name it. Thread-safe; calls block
// their thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/rpc/channel.h"
#include "proto/coordinator.pb.h"

namespace shoal::rpc {

class CoordinatorClient {
 public:
  explicit CoordinatorClient(std::shared_ptr<Channel> channel);
  ~CoordinatorClient();

  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest& request,
                                                  const CallOptions& options = {});
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest& request,
                                              const CallOptions& options = {});
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest& request,
                                                  const CallOptions& options = {});
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request,
                                                const CallOptions& options = {});
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(const proto::RenewLeaseRequest& request,
                                                    const CallOptions& options = {});
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request,
                                          const CallOptions& options = {});

  // These two block at the coordinator for up to request.wait_seconds: the deadline in `options`
  // must be longer.
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request,
                                              const CallOptions& options);
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request,
                                                const CallOptions& options);

  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request, const CallOptions& options = {});

  // Calls on_event for each event until the job is over (OK), the connection breaks (an error: call
  // again with the last number seen), or on_event returns false (OK). `options.deadline` bounds the
  // whole stream.
  absl::Status WatchJob(const proto::WatchJobRequest& request,
                        const std::function<bool(const proto::JobEvent&)>& on_event,
                        const CallOptions& options);

 private:
  struct Stub;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace shoal::rpc
