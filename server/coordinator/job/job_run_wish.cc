// More servers, or fewer, while a job trains: what is wished, whether that can be, and where it
// stands. job_run_move.cc does it.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/placement/placement.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

constexpr int64_t kMostServers = 4096;

}  // namespace

absl::Status JobRun::CheckTrains() const {
  if (closed() || stop_requested_) {
    return FailedPrecondition("{} is {}: its servers stay", job_.id, closed() ? state_ : "ending");
  }
  if (phase_ == Phase::kWaiting || phase_ == Phase::kTakingOver || phase_ == Phase::kConfiguring) {
    return FailedPrecondition("{} does not train yet ({}): try again later", job_.id, state_);
  }
  return absl::OkStatus();
}

absl::Status JobRun::CheckWish(int64_t servers) const {
  SHOAL_RETURN_IF_ERROR(CheckTrains());
  if (IsElastic()) {
    return FailedPrecondition(
        "{} has cluster.elastic: its servers are those that are there; start or end some (kubectl "
        "scale), or say shoal drain",
        job_.id);
  }
  const int64_t least = std::min(job_.job.cluster.min_servers, std::ssize(servers_));
  const int64_t most = std::max<int64_t>(
      std::ssize(servers_), std::min<int64_t>(kMostServers, std::ssize(job_.pushes.partitions)));
  if (servers < least || servers > most) {
    return InvalidArgument("--servers {}: {} can have {} to {}, one for each of its partitions{}",
                           servers, job_.id, least, most,
                           least > 1 ? ", and cluster.min_servers at least" : "");
  }
  if (servers == std::ssize(servers_) && departures_.empty()) {
    return absl::OkStatus();
  }
  return CheckFits(Leaving(), servers);
}

absl::Status JobRun::CheckFits(const std::set<uint64_t>& leaving, int64_t servers) const {
  std::vector<Member> there = servers_;
  there.insert(there.end(), spare_servers_.begin(), spare_servers_.end());
  const plan::ShardMap target = TargetOf(server::PlacesToBe(servers_, leaving, servers));
  return CheckRoom(job_.pushes.partitions, job_.shard_map, target, there, job_.job.service);
}

absl::StatusOr<proto::ScaleReply> JobRun::Scale(const proto::ScaleRequest& request) {
  const int64_t there = std::ssize(move_.has_value() ? move_->after : servers_);
  const int64_t wish = request.cancel() ? there : request.servers();
  if (request.rate() < 0) {
    return InvalidArgument("a rate of {} bytes a second is none", request.rate());
  }
  if (wish != 0 || request.cancel()) {
    SHOAL_RETURN_IF_ERROR(CheckWish(wish));
  }
  if (request.dry_run()) {
    return DescribeWish(wish);
  }
  if (wish == 0) {
    return DescribeScaling();
  }
  const bool followed = std::exchange(waves_.follow, !request.cancel());
  if (wish != job_.servers || request.rate() != waves_.rate) {
    Wish(wish, request.rate());
  } else if (followed != waves_.follow) {
    SetWanted(wish);
  }
  SetBytesLeft(request.cancel() && departures_.empty() ? 0 : DescribeWish(wish).bytes_moved());
  return DescribeScaling();
}

void JobRun::SetBytesLeft(int64_t bytes) {
  scaling_.set_bytes_left(bytes);
  environment_.metrics.move_bytes_left.Set(static_cast<double>(bytes));
}

// `rate` of state that moves for it, bytes a second; 0: all of it moves at once.
void JobRun::Wish(int64_t servers, int64_t rate) {
  LogInfo("{} is to have {} servers", job_.id, servers);
  Record({{"event", "scale"}, {"step", version_}, {"servers", servers}});
  scaling_ = {};
  scaling_.set_least_bytes(DescribeWish(servers).least_bytes());
  waves_.ended = 0;
  waves_.rate = rate;
  waves_.next = absl::Time();
  SetWanted(servers);
}

// For this life and the next.
void JobRun::SetWanted(int64_t servers) {
  job_.servers = servers;
  Log(environment_.store.SaveRun(job_.id, DescribeRun(), /*begins=*/false));
  proto::JobEvent event;
  event.set_wanted_servers(servers);
  Append(std::move(event));
}

proto::ScaleReply JobRun::DescribeScaling() const {
  proto::ScaleReply reply = scaling_;
  reply.set_job_id(job_.id);
  reply.set_servers(std::ssize(servers_));
  reply.set_wanted(IsElastic() && settled_at_ != absl::InfiniteFuture() ? ServersToBe()
                                                                        : job_.servers);
  reply.set_moving(move_.has_value());
  for (const Member& server : servers_) {
    if (departures_.contains(server.incarnation)) {
      reply.add_draining(server.index);
    }
  }
  if (!servers_.empty()) {
    reply.set_imbalance(Imbalance(job_.pushes.partitions, job_.shard_map,
                                  plan::FirstServers(std::ssize(servers_))));
  }
  return reply;
}

// What that would move, from where partitions are now.
proto::ScaleReply JobRun::DescribeWish(int64_t servers) const {
  const std::vector<plan::PartitionSpec>& partitions = job_.pushes.partitions;
  const std::vector<int> places = server::PlacesToBe(servers_, Leaving(), servers);
  const std::vector<plan::Relocation> relocations =
      plan::PlanRelocations(partitions, job_.shard_map, places);
  proto::ScaleReply reply;
  reply.set_job_id(job_.id);
  reply.set_servers(std::ssize(servers_));
  reply.set_wanted(servers);
  reply.set_bytes_moved(plan::MovedBytes(partitions, job_.shard_map, TargetOf(places)));
  reply.set_least_bytes(plan::LeastBytes(partitions, job_.shard_map, places));
  reply.set_partitions_moved(std::ssize(relocations));
  reply.set_imbalance(Imbalance(partitions, plan::Relocate(job_.shard_map, relocations), places));
  return reply;
}

bool JobRun::WantsServers() const {
  return !closed() && !stop_requested_ &&
         (IsElastic() || job_.servers > std::ssize(servers_) || !departures_.empty());
}

}  // namespace shoal::server
