// Servers that are lost while others have what they had (service.replicas). Backups get the sealed
// gradients of a step before it is recorded, so that what is recorded each of them can commit.
//
// A loss drops the attempt under way, if any; a commit or checkpoint ends first. Then who backs a
// partition up becomes its primary, by a move as for any other change of servers in which no state
// leaves a server, and the step begins again by that map, from the last commit. The next move, one
// step later, makes other servers backups.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "core/job/shard_map_message.h"
#include "core/plan/placement/placement.h"
#include "server/coordinator/job/call_all.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/step/expected_pushes.h"

namespace shoal::server {
namespace {

// Who cannot be reached comes back, or its lease says that it is lost.
constexpr absl::Duration kBetweenRecoveries = absl::Seconds(1);
constexpr int64_t kMostRecoveries = 60;

}  // namespace

bool JobRun::IsReplaced(const Member& server) const {
  if (replicas() == 1 || phase_ == Phase::kWaiting || phase_ == Phase::kConfiguring ||
      !TakesPart(server.incarnation) || server.role != proto::ROLE_SERVER) {
    return false;
  }
  std::set<uint64_t> lost = replicas_.lost;
  lost.insert(server.incarnation);
  return IsHeldWithout(job_.shard_map, servers_, lost);
}

void JobRun::LoseServer(const Member& member) {
  const auto found = std::ranges::find(servers_, member.incarnation, &Member::incarnation);
  const auto server = static_cast<size_t>(found - servers_.begin());
  replicas_.lost.insert(member.incarnation);
  departures_.erase(member.incarnation);
  TellReplicas();
  const auto rounds = replicas_.rounds;
  GoOnWithoutServer(server);
  for (const auto& [number, tell] : rounds) {
    tell(static_cast<int>(server));
  }
}

// An attempt is dropped; a commit or a checkpoint ends first.
void JobRun::GoOnWithoutServer(size_t server) {
  const std::string name = NameOf(servers_[server]);
  switch (phase_) {
    case Phase::kTakingOver:
      if (!takeover_->decided) {
        takeover_->ask_again.erase(server);
        takeover_->answers[server] = {.server = name, .lost = true};
        DecideOnAnswers();
      }
      return;
    case Phase::kBeginning:
    case Phase::kRunning:
    case Phase::kPreparing:
      environment_.metrics.dropped_attempts.Increment();
      Record({{"event", "attempt_dropped"},
              {"step", step_},
              {"attempt", attempt_},
              {"reason", name + " is lost"}});
      OpenStep();
      return;
    case Phase::kMoving:
      DropWave();
      OpenStep();
      return;
    case Phase::kShort:
    case Phase::kPlanning:
      OpenStep();
      return;
    case Phase::kFinishing:
      if (!checkpoint_in_progress_ && version_ > 0 && !IsSaved()) {
        Finish(interrupted_);
      }
      return;
    default:
      return;
  }
}

void JobRun::DropWave() {
  ++waves_.number;  // what is answered of it is late
  waves_.meanwhile = false;
  replicas_.again = absl::InfiniteFuture();
  if (move_.has_value()) {
    move_.reset();
    Retire(std::move(move_control_));
  }
}

// Moves what is needed to go on without those that are lost.
void JobRun::Recover() {
  DropWave();
  if (checkpoint_in_progress_) {  // it reads partitions where they are
    AwaitCheckpoint();
    return;
  }
  phase_ = Phase::kMoving;
  plan_requested_ = 0;  // what was planned was for the attempt that is dropped
  waves_.began = environment_.clock.Now();
  SetState("recovering what lost servers had");
  // Those that are left hold what this map says, and an attempt that comes late, which would free
  // what they reserve, is an earlier one.
  NumberStep();
  BeginAtServers([this] {
    if (phase_ == Phase::kMoving) {
      told_generation_ = job_.shard_map.generation;
      MoveToThoseLeft();
    }
  });
}

void JobRun::MoveToThoseLeft() {
  std::vector<int> left;
  for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
    if (!replicas_.lost.contains(servers_[static_cast<size_t>(server)].incarnation)) {
      left.push_back(server);
    }
  }
  plan::ShardMap target = HeldByThoseLeft();
  target.generation = NextGeneration();
  move_ = PlanMoveTo(job_.shard_map, target, servers_, /*joiners=*/{}, left, replicas_.lost,
                     /*bytes_left=*/0);
  ++waves_.number;
  move_control_ = control_;
  ReserveForMove();
}

void JobRun::RecoverAgain(const absl::Status& status) {
  DropWave();
  LogWarning("what lost servers had is not recovered yet: {}", Message(status));
  if (++replicas_.tries > kMostRecoveries) {
    EndBy({.message = fmt::format("what lost servers had cannot be recovered: {}", Message(status)),
           .by_loss = job_.job.RestoresOnServerLoss()});
    return;
  }
  replicas_.again = environment_.clock.Now() + kBetweenRecoveries;
}

// After a move: who is lost has no part in the map any more.
void JobRun::EndRecovery() {
  const size_t gone =
      std::erase_if(replicas_.lost, [this](uint64_t lost) { return !TakesPart(lost); });
  if (gone > 0) {
    MakeBackups(absl::ZeroDuration());
  }
  waves_.meanwhile = false;
  replicas_.tries = 0;
  replicas_.rounds.clear();
  TellReplicas();
}

void JobRun::TellReplicas() {
  int64_t missing = 0;  // of one copy, until that is lost
  if (!replicas_.lost.empty()) {
    missing = plan::Underreplicated(HeldByThoseLeft(), replicas());
  } else if (replicas() > 1) {
    missing = plan::Underreplicated(job_.shard_map, replicas());
  }
  environment_.metrics.underreplicated_partitions.Set(static_cast<double>(missing));
}

plan::ShardMap JobRun::HeldByThoseLeft() const {
  plan::ShardMap map = job_.shard_map;
  for (plan::Holders& holders : map.servers) {
    const auto is_lost = [this](int holder) {
      return replicas_.lost.contains(servers_[static_cast<size_t>(holder)].incarnation);
    };
    holders.erase(std::remove_if(holders.begin(), holders.end(), is_lost), holders.end());
  }
  return map;
}

// By a move, after that or a little later, where some are missing.
void JobRun::MakeBackups(absl::Duration in) {
  if (LacksBackups()) {
    waves_.follow = true;
    settled_at_ = waves_.next = environment_.clock.Now() + in;
  }
}

// Those that are there become backups, while servers that are to come load the job.
bool JobRun::BackUpMeanwhile() {
  if (!LacksBackups() || checkpoint_in_progress_) {
    return false;
  }
  const std::vector<int> there = plan::FirstServers(std::ssize(servers_));
  move_ = PlanMoveTo(job_.shard_map, TargetOf(there), servers_, /*joiners=*/{}, there, /*lost=*/{},
                     /*bytes_left=*/0);
  move_->map.generation = NextGeneration();
  phase_ = Phase::kMoving;
  waves_.meanwhile = true;
  waves_.began = environment_.clock.Now();
  SetState("making backups");
  ++waves_.number;
  move_control_ = control_;
  ReserveForMove();
  return true;
}

// Where that cannot be, the wish stays; it is tried again.
bool JobRun::GiveUpMeanwhile(const std::string& why) {
  if (!waves_.meanwhile) {
    return false;
  }
  LogWarning("{} has no backups of some partitions yet: {}", job_.id, why);
  DropWave();
  waves_.next = environment_.clock.Now() + kBetweenTriesOfBackups;
  return true;
}

// And has servers that could be.
bool JobRun::LacksBackups() const {
  return plan::Underreplicated(job_.shard_map, std::min(replicas(), std::ssize(servers_))) > 0;
}

plan::ShardMap JobRun::TargetOf(std::span<const int> places) const {
  std::vector<Member> there = servers_;
  there.insert(there.end(), spare_servers_.begin(), spare_servers_.end());
  return plan::PlanTarget(job_.pushes.partitions, job_.shard_map, places, replicas(),
                          HostsOf(there));
}

void JobRun::FillServers(proto::JoinJobReply& reply) const {
  std::unordered_map<std::string_view, int> workers_at;  // by host
  for (const Member& worker : workers_) {
    ++workers_at[worker.host];
  }
  for (size_t server = 0; server < servers_.size(); ++server) {
    auto* address = reply.add_servers();
    address->set_index(static_cast<int>(server));
    address->set_address(servers_[server].address);
    address->set_incarnation(servers_[server].incarnation);
    const auto gpu = server_gpus_.find(servers_[server].incarnation);
    if (gpu != server_gpus_.end() && !gpu->second.gpu().empty()) {
      *address->mutable_gpu() = gpu->second;
      address->mutable_gpu()->set_clients(workers_at[servers_[server].host]);
    }
  }
}

// With where that worker reads.
void JobRun::FillMap(const Member& worker, proto::JoinJobReply& reply) const {
  if (!job_.job.service.read_replicas) {
    *reply.mutable_shard_map() = plan::ToMessage(job_.shard_map);
    return;
  }
  *reply.mutable_shard_map() = plan::ToMessage(
      plan::WithReaders(job_.shard_map, HostsOf(servers_), worker.host, worker.index));
}

// In place of the map, and of what a run keeps: what has changed since the map that the worker
// knows. False: it knows none of the run, or what has changed is not remembered.
bool JobRun::FillChange(int64_t known, const Member& worker, proto::JoinJobReply& reply) {
  plan::MapChange& change = known_maps_.change;
  if (change.from != known || change.to != job_.shard_map.generation) {
    std::optional<plan::MapChange> since = known_maps_.history.Since(known, job_.shard_map);
    if (!since.has_value()) {
      return false;
    }
    change = *std::move(since);
    known_maps_.told = plan::ToBytes(change);
  }
  if (job_.job.service.read_replicas) {
    plan::MapChange own = change;
    const std::vector<std::string> hosts = HostsOf(servers_);
    const int index = worker.index + (SHOAL_PLANTED("reader-of-another") ? 1 : 0);
    for (plan::MapChange::Partition& partition : own.partitions) {
      partition.reader = plan::ReaderOf(partition.id, partition.servers, hosts, worker.host, index);
    }
    reply.set_map_change(plan::ToBytes(own));
  } else {
    reply.set_map_change(known_maps_.told);
  }
  const bool are_others = !change.places.empty() && !SHOAL_PLANTED("servers-forgotten");
  if (are_others || job_.job.service.memory == plan::PartitionMemory::kCuda) {
    FillServers(reply);
  }
  return true;
}

// What each server is told of an attempt. Where workers push packs by themselves it can tell the
// last push to a partition, whoever runs which, and the gradient goes to backups with that one.
std::function<proto::BeginAttemptRequest(int)> JobRun::AttemptAt(proto::BeginAttemptRequest all) {
  std::map<int, std::vector<proto::BackupPlace>> backups;
  const bool trains = phase_ == Phase::kBeginning && !validating_;
  if (trains && replicas() > 1 &&
      std::ranges::count(pushes_, proto::NextStepRequest::PUSHES_OF_PACKS) == std::ssize(pushes_)) {
    const std::vector<int64_t> pushes = MostPushes(job_.pushes, ledger_->packs());
    all.mutable_unit_pushes()->Assign(pushes.begin(), pushes.end());
    backups = BackupPlaces(job_.shard_map, servers_);
  }
  const bool is_told = told_generation_ == job_.shard_map.generation;
  return [all, backups, forms = is_told ? nullptr : &Forms()](int server) {
    proto::BeginAttemptRequest request = all;
    if (forms != nullptr) {
      *request.mutable_held() = forms->by_servers[static_cast<size_t>(server)];
    }
    if (const auto found = backups.find(server); found != backups.end()) {
      request.mutable_backups()->Assign(found->second.begin(), found->second.end());
    }
    return request;
  };
}

// Backups get the gradients of the step that they have not got, then it is committed.
void JobRun::Replicate(const std::function<void()>& then) {
  if (replicas() == 1 || SHOAL_PLANTED("replicas-unawaited")) {
    then();
    return;
  }
  const auto sources = GradientSources(job_.shard_map, servers_);
  if (sources.empty()) {
    then();
    return;
  }
  proto::ReplicateRequest request;
  request.set_step(step_);
  request.set_attempt(attempt_);
  CallAll(
      &rpc::ParameterServerService::Replicate,
      [request, sources](int server) mutable {
        request.clear_sources();
        if (const auto found = sources.find(server); found != sources.end()) {
          request.mutable_sources()->Assign(found->second.begin(), found->second.end());
        }
        return request;
      },
      [this, then](const std::vector<proto::ReplicateReply>& replies) {
        if (phase_ != Phase::kPreparing) {
          return;  // one is lost
        }
        environment_.reached("replicated");
        for (const proto::ReplicateReply& reply : replies) {
          environment_.metrics.replicated_bytes.Increment(static_cast<double>(reply.bytes()));
        }
        then();
      },
      [this](int server, const absl::Status& status) {
        if (phase_ != Phase::kPreparing) {
          return;
        }
        if (stop_requested_) {
          Finish(/*interrupted=*/true);
        } else {
          DropAttempt(Annotate(status, NameOf(servers_[static_cast<size_t>(server)])));
        }
      });
}

// What is called for an attempt that a server did not begin or commit. Where that is lost, others
// have what it had, and have done so; where another attempt has begun meanwhile, servers may have
// heard of that first and refuse this one, for which nobody waits.
std::function<void(int, const absl::Status&)> JobRun::OrWithoutLost(std::function<void()> then) {
  return [this, step = step_, attempt = attempt_, then = std::move(then)](
             int server, const absl::Status& status) {
    if (step == step_ && attempt == attempt_) {
      IsLoss(status) ? then() : OnServerError(server, status);
    }
  };
}

}  // namespace shoal::server
