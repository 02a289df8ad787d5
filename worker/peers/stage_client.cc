#include "worker/peers/stage_client.h"

#include "core/base/check.h"
#include "core/rpc/channel.h"
#include "core/rpc/stage_service.h"

namespace shoal::worker {
namespace {

class GrpcStageClient final : public StageClient {
 public:
  GrpcStageClient(const WorkerGroup& group, const rpc::Security& security) {
    for (const WorkerGroup::Worker& worker : group.workers) {
      stages_.push_back(
          rpc::Channel::Create(worker.address, security, rpc::Role::kWorker, worker.name));
    }
  }

  absl::StatusOr<proto::ConnectStageReply> ConnectStage(int stage,
                                                        const proto::ConnectStageRequest& request,
                                                        absl::Duration timeout) override {
    SHOAL_CHECK(stage >= 0 && static_cast<size_t>(stage) < stages_.size());
    return stages_[static_cast<size_t>(stage)]->Call(&rpc::StageService::ConnectStage, request,
                                                     {.deadline = timeout});
  }

  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      int worker, const proto::JoinRendezvousRequest& request, absl::Duration timeout) override {
    SHOAL_CHECK(worker >= 0 && static_cast<size_t>(worker) < stages_.size());
    return stages_[static_cast<size_t>(worker)]->Call(&rpc::StageService::JoinRendezvous, request,
                                                      {.deadline = timeout});
  }

  void Cancel() override {
    for (const auto& stage : stages_) {
      stage->Cancel();
    }
  }

 private:
  std::vector<std::shared_ptr<rpc::Channel>> stages_;
};

}  // namespace

std::unique_ptr<StageClient> MakeGrpcStageClient(const WorkerGroup& group,
                                                 const rpc::Security& security) {
  return std::make_unique<GrpcStageClient>(group, security);
}

}  // namespace shoal::worker
