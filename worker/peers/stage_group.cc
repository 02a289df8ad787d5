#include "worker/peers/stage_group.h"

#include "core/base/status.h"
#include "core/job/job_id.h"

namespace shoal::worker {

std::string StageGroup::NameOf(int stage) const {
  return fmt::format("stage {} ({})", stage, workers[static_cast<size_t>(stage)].name);
}

namespace {

StageGroup::Worker From(const proto::WorkerAddress& worker) {
  return {.name = fmt::format("worker-{}", worker.index()),
          .address = worker.address(),
          .incarnation = worker.incarnation()};
}

}  // namespace

absl::StatusOr<StageGroup> PeersFrom(const proto::JoinJobReply& join, uint64_t incarnation) {
  StageGroup peers{.job_id = join.job_id(), .stage = -1};
  for (const proto::WorkerAddress& worker : join.peers()) {
    peers.stage = worker.incarnation() == incarnation ? peers.stages() : peers.stage;
    peers.workers.push_back(From(worker));
  }
  if (peers.stage < 0) {
    return Internal("the coordinator names {} peers without this worker", peers.stages());
  }
  return peers;
}

absl::StatusOr<StageGroup> GroupFrom(const proto::JoinJobReply& join, uint64_t incarnation) {
  StageGroup group{.job_id = join.job_id(), .group = join.group(), .stage = join.stage()};
  for (const proto::WorkerAddress& worker : join.stages()) {
    group.workers.push_back(From(worker));
  }
  if (join.stage() < 0 || join.stage() >= group.stages() ||
      group.workers[static_cast<size_t>(join.stage())].incarnation != incarnation) {
    return Internal("the coordinator makes this worker stage {} of a group of {} without it",
                    join.stage(), group.stages());
  }
  return group;
}

absl::Status CheckJob(const StageGroup& group, const std::string& job_id) {
  return job_id == group.job_id
             ? absl::OkStatus()
             : plan::JobNotHere(job_id, "this worker works on", {&group.job_id, 1});
}

}  // namespace shoal::worker
