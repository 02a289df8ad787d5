#include "worker/peers/peer_service.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {
namespace {

// Of a caller's texts about itself.
constexpr size_t kLongestText = 1024;

}  // namespace

void PeerService::Open(const WorkerGroup& peers, NewId new_id) {
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(!group_.has_value() && peers.rank == 0);
  group_ = peers;
  new_id_ = std::move(new_id);
}

void PeerService::Close(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  closed_ = closed_.ok() ? why : closed_;
  new_id_ = nullptr;
}

void PeerService::Reset() {
  absl::MutexLock lock(&mutex_);
  ++resets_;
  group_.reset();
  new_id_ = nullptr;
  closed_ = absl::OkStatus();
  attempt_ = {.step = -1};
  generation_ = 0;
  peers_.clear();
  answer_.reset();
}

absl::Status PeerService::CheckCaller(const proto::JoinRendezvousRequest& request) const {
  const WorkerGroup& group = *group_;
  SHOAL_RETURN_IF_ERROR(CheckJob(group.job_id, request.job_id()));
  if (request.rank() < 0 || request.rank() >= group.size() || request.peers() != group.size() ||
      request.peer() != group.workers[0].incarnation ||
      request.incarnation() != group.workers[static_cast<size_t>(request.rank())].incarnation) {
    return PermissionDenied(
        "peer {} of {} calls the first of {}, or one of the two is another life of that worker",
        request.rank(), request.peers(), group.size());
  }
  if (request.gpu().size() > kLongestText || request.unavailable().size() > kLongestText ||
      (request.gpu().empty() && request.unavailable().empty()) || request.step() < 0 ||
      request.attempt() < 0) {
    return InvalidArgument("{} says of itself what makes no sense",
                           NameOf(static_cast<size_t>(request.rank())));
  }
  return absl::OkStatus();
}

absl::Status PeerService::ComeTo(const StepAttempt& attempt, int64_t generation) {
  if (attempt < attempt_) {
    return FailedPrecondition("step {} attempt {} is over: another peer is at step {} attempt {}",
                              attempt.step, attempt.attempt, attempt_.step, attempt_.attempt);
  }
  if (attempt > attempt_) {
    attempt_ = attempt;
    generation_ = generation;
    answer_.reset();
    peers_.assign(group_->workers.size(), Peer());
  }
  if (generation != generation_) {
    return FailedPrecondition("step {} attempt {}: generation {}, where another peer has {}",
                              attempt.step, attempt.attempt, generation, generation_);
  }
  return absl::OkStatus();
}

std::string PeerService::Hindrance() const {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (!peer.unavailable.empty()) {
      return fmt::format("{}: {}", NameOf(rank), peer.unavailable);
    }
    if (peer.version != peers_[0].version) {
      return fmt::format("{} and {} have different versions of the library ({} and {})", NameOf(0),
                         NameOf(rank), peers_[0].version, peer.version);
    }
    for (size_t other = 0; other < rank; ++other) {
      if (peers_[other].gpu == peer.gpu) {
        return fmt::format("{} and {} share a GPU ({})", NameOf(other), NameOf(rank), peer.gpu);
      }
    }
  }
  return "";
}

void PeerService::AnswerWhenAllAreHere() {
  if (answer_.has_value() || !std::ranges::all_of(peers_, &Peer::here)) {
    return;
  }
  proto::JoinRendezvousReply answer;
  answer.set_reason(Hindrance());
  answer.set_on_gpus(std::ranges::all_of(peers_, &Peer::on_gpu));
  if (answer.reason().empty()) {
    auto id = new_id_();
    if (id.ok()) {
      answer.set_id(*std::move(id));
    } else {
      answer.set_reason(fmt::format("{}: {}", NameOf(0), Message(id.status())));
    }
  }
  answer_ = std::move(answer);
}

absl::StatusOr<proto::JoinRendezvousReply> PeerService::JoinRendezvous(
    const proto::JoinRendezvousRequest& request) {
  const StepAttempt attempt{request.step(), request.attempt()};
  const absl::Time deadline = RealClock().Now() + patience_;
  absl::MutexLock lock(&mutex_);
  const auto open = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !closed_.ok() || group_.has_value();
  };
  AwaitUntil(&mutex_, absl::Condition(&open), deadline);
  SHOAL_RETURN_IF_ERROR(closed_);
  if (!group_.has_value()) {
    return Unavailable("this worker has no peers yet; try again");
  }
  SHOAL_RETURN_IF_ERROR(CheckCaller(request));
  SHOAL_RETURN_IF_ERROR(ComeTo(attempt, request.generation()));
  peers_[static_cast<size_t>(request.rank())] = {.here = true,
                                                 .gpu = request.gpu(),
                                                 .version = request.version(),
                                                 .unavailable = request.unavailable(),
                                                 .on_gpu = request.on_gpu()};
  AnswerWhenAllAreHere();
  const int64_t resets = resets_;
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !closed_.ok() || resets_ != resets || attempt_ > attempt || answer_.has_value();
  };
  AwaitUntil(&mutex_, absl::Condition(&settled), deadline);
  SHOAL_RETURN_IF_ERROR(closed_);
  if (resets_ != resets) {
    return Unavailable("this worker has left the job; try again");
  }
  SHOAL_RETURN_IF_ERROR(ComeTo(attempt, request.generation()));
  if (!answer_.has_value()) {
    const auto missing = std::ranges::find(peers_, false, &Peer::here);
    return Unavailable("{} has not come to step {} attempt {} yet; try again",
                       NameOf(static_cast<size_t>(missing - peers_.begin())), attempt.step,
                       attempt.attempt);
  }
  return *answer_;
}

}  // namespace shoal::worker
