#include "worker/peers/stage_group.h"

#include "core/base/status.h"
#include "core/job/job_id.h"

namespace shoal::worker {

std::string StageGroup::NameOf(int stage) const {
  return fmt::format("stage {} ({})", stage, workers[static_cast<size_t>(stage)].name);
}

namespace {

WorkerGroup::Worker From(const proto::WorkerAddress& worker) {
  return {.name = fmt::format("worker-{}", worker.index()),
          .address = worker.address(),
          .incarnation = worker.incarnation()};
}

}  // namespace

absl::StatusOr<WorkerGroup> PeersFrom(const proto::JoinJobReply& join, uint64_t incarnation) {
  WorkerGroup peers{.job_id = join.job_id(), .rank = -1};
  for (const proto::WorkerAddress& worker : join.peers()) {
    peers.rank = worker.incarnation() == incarnation ? peers.size() : peers.rank;
    peers.workers.push_back(From(worker));
  }
  if (peers.rank < 0) {
    return Internal("the coordinator names {} peers without this worker", peers.size());
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

absl::Status CheckJob(const std::string& own_job_id, const std::string& job_id) {
  return job_id == own_job_id ? absl::OkStatus()
                              : plan::JobNotHere(job_id, "this worker works on", {&own_job_id, 1});
}

}  // namespace shoal::worker
