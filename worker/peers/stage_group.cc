#include "worker/peers/stage_group.h"

#include "core/base/status.h"

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
  StageGroup peers{.stage = -1};
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
  StageGroup group{.group = join.group(), .stage = join.stage()};
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

}  // namespace shoal::worker
