// Servers that are to come load the job while it trains, so that steps wait for no more than the
// state that moves. They hold nothing of it until a wave brings them some, and are none of its
// servers: one that is lost leaves its place to another.
#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "core/rpc/server_gpu.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {

// They begin before the border at which they are needed, and so does the plan of what moves.
void JobRun::LoadAhead() {
  if (IsToMove() && IsSettled() && !move_.has_value() && CheckTrains().ok()) {
    IsReadyToMove().IgnoreError();  // it is found again there
    PlanWaveAhead();
  }
}

// Whether these have all loaded the job; those that have not are asked to. Not OK for one that
// cannot.
absl::StatusOr<bool> JobRun::LoadJoiners(const std::vector<Member>& needed) {
  const auto is_asked = [this](const Member& joiner) {
    return joiners_.asked.contains(joiner.incarnation) ||
           joiners_.loaded.contains(joiner.incarnation);
  };
  for (const Member& joiner : needed) {
    if (const auto refused = joiners_.refused.find(joiner.incarnation);
        refused != joiners_.refused.end()) {
      return FailedPrecondition("{}: {}", NameOf(joiner), refused->second);
    }
  }
  if (joiners_.asked.empty() && !std::ranges::all_of(needed, is_asked)) {
    AskToLoad(needed);
  }
  return std::ranges::all_of(needed, [this](const Member& joiner) {
    return joiners_.loaded.contains(joiner.incarnation);
  });
}

void JobRun::AskToLoad(const std::vector<Member>& servers) {
  const std::set<uint64_t> loaded = joiners_.loaded;
  ReleaseJoiners(servers);
  joiners_.servers = servers;
  joiners_.control = environment_.make_clients(servers);
  for (const Member& joiner : servers) {
    (loaded.contains(joiner.incarnation) ? joiners_.loaded : joiners_.asked)
        .insert(joiner.incarnation);
  }
  proto::ConfigureRequest request;
  request.set_job_id(job_.id);
  request.set_term(environment_.term);
  *request.mutable_job() = plan::ToMessage(job_.job);
  request.set_servers(static_cast<int>(servers_.size() + servers.size()));
  request.set_run(job_.run);
  *request.mutable_shard_map() = plan::ToMessage(job_.shard_map);
  request.mutable_shard_map()->set_generation(NextGeneration());
  if (loaded_version_ > 0) {
    request.set_checkpoint(job_.pushes.freezes() ? job_.checkpoints->PathOf(loaded_version_)
                                                 : newest_checkpoint_->path);
  }
  for (size_t index = 0; index < servers.size(); ++index) {
    const Member& joiner = servers[index];
    if (loaded.contains(joiner.incarnation)) {
      continue;
    }
    request.set_server_index(static_cast<int>(servers_.size() + index));
    joiners_.control->Call(
        static_cast<int>(index), &rpc::ParameterServerService::Configure, request,
        [this, joiner, number = joiners_.number](const auto& reply) {
          environment_.post([this, joiner, number, reply] {
            if (!closed() && number == joiners_.number && !EndsBySuccessor(reply.status())) {
              OnJoinerLoaded(joiner, reply);
            }
          });
        });
  }
}

void JobRun::OnJoinerLoaded(const Member& joiner,
                            const absl::StatusOr<proto::ConfigureReply>& reply) {
  absl::Status status = reply.status();
  status.Update(reply.ok() ? rpc::CheckServerGpu(reply->gpu()) : absl::OkStatus());
  if (!joiners_.asked.contains(joiner.incarnation)) {
    return;  // it was lost meanwhile
  }
  if (status.ok()) {
    joiners_.loaded.insert(joiner.incarnation);
    server_gpus_[joiner.incarnation] = reply->gpu();
  } else if (IsLoss(status)) {
    unreachable_.push_back(joiner);
  } else {
    joiners_.refused[joiner.incarnation] = Message(status);
  }
  OnJoinerAnswered(joiner.incarnation);
}

void JobRun::OnJoinerAnswered(uint64_t incarnation) {
  if (joiners_.asked.erase(incarnation) == 0 || !joiners_.asked.empty()) {
    return;
  }
  environment_.reached("joined");
  if (phase_ == Phase::kShort) {
    OpenStep();  // no step ends, after which it would be seen
  }
}

// Those that did not come after all, but for these, have nothing of the job any more.
void JobRun::ReleaseJoiners(const std::vector<Member>& kept) {
  if (joiners_.control == nullptr) {
    return;
  }
  std::vector<int> outside;
  for (size_t index = 0; index < joiners_.servers.size(); ++index) {
    const uint64_t incarnation = joiners_.servers[index].incarnation;
    if (!TakesPart(incarnation) &&
        std::ranges::find(kept, incarnation, &Member::incarnation) == kept.end()) {
      outside.push_back(static_cast<int>(index));
    }
  }
  ReleaseAt(*joiners_.control, outside);
  Retire(std::move(joiners_.control));
  joiners_ = {.number = joiners_.number + 1};
}

void JobRun::Disown(std::vector<Member> servers) {
  joiners_.control = environment_.make_clients(servers);
  joiners_.servers = std::move(servers);
}

bool JobRun::IsJoining(uint64_t incarnation) const {
  return !closed() && !TakesPart(incarnation) &&
         (joiners_.asked.contains(incarnation) || joiners_.loaded.contains(incarnation));
}

// It comes no more.
void JobRun::LoseJoiner(const Member& member) {
  const auto is_lost = [&member](const Member& other) {
    return other.incarnation == member.incarnation;
  };
  std::erase_if(spare_servers_, is_lost);
  joiners_.loaded.erase(member.incarnation);
  OnJoinerAnswered(member.incarnation);
  if (!closed() && move_.has_value() && move_->Joins(member.incarnation)) {
    GiveUpMove(NameOf(member) + " is lost");
    OpenStep();
  }
}

}  // namespace shoal::server
