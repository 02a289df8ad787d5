#include "worker/pipeline/links/group_links.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {

void GroupLinks::Skip(const StepAttempt& attempt) {
  for (auto& [peer, pair] : pairs_) {
    pair.spent = pair.spent || attempt.attempt > 1;
  }
}

absl::Status GroupLinks::Prepare(const StepAttempt& attempt,
                                 std::span<const plan::MessageQueue> queues) {
  Skip(attempt);
  std::map<int, LinkMemory> renewed;
  for (const plan::MessageQueue& queue : queues) {
    if (queue.from != stage_ && queue.to != stage_) {
      continue;
    }
    const int peer = queue.from == stage_ ? queue.to : queue.from;
    const LinkMemory memory = MemoryBetween(queues, stage_, peer, longest_message_);
    const auto pair = pairs_.find(peer);
    if (pair == pairs_.end() || pair->second.spent || !pair->second.memory.Covers(memory)) {
      renewed[peer] = memory;
    }
  }
  // Destroyed without the lock: waits until connections have ended. Includes spent pairs that this
  // schedule does not use: no step begins over closed links.
  std::map<int, Pair> old;
  {
    absl::MutexLock lock(&mutex_);
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      const auto next = std::next(pair);
      if (pair->second.spent || renewed.contains(pair->first)) {
        old.insert(pairs_.extract(pair));
      }
      pair = next;
    }
  }
  old.clear();
  if (renewed.empty()) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(StageConnections::Links links,
                         connections_->Connect(renewed, attempt, connect_timeout_));
  absl::MutexLock lock(&mutex_);
  for (auto& [peer, made] : links) {
    pairs_[peer] = {.memory = renewed[peer], .links = std::move(made)};
  }
  return absl::OkStatus();
}

absl::Status GroupLinks::BeginStep(const StepMessages& step) {
  for (auto& [peer, pair] : pairs_) {
    std::vector<plan::MessageQueue> queues;
    for (const plan::MessageQueue& queue : step.queues) {
      if ((queue.from == peer && queue.to == stage_) ||
          (queue.from == stage_ && queue.to == peer)) {
        queues.push_back(queue);
      }
    }
    StepMessages with_peer = step;
    with_peer.queues = queues;
    SHOAL_RETURN_IF_ERROR(pair.links->BeginStep(with_peer));
  }
  return absl::OkStatus();
}

absl::Status GroupLinks::EndStep(absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  for (auto& [peer, pair] : pairs_) {
    SHOAL_RETURN_IF_ERROR(
        pair.links->EndStep(std::max(deadline - RealClock().Now(), absl::ZeroDuration())));
  }
  return absl::OkStatus();
}

absl::StatusOr<TransportLinks*> GroupLinks::LinksTo(int peer) {
  const auto pair = pairs_.find(peer);
  if (pair == pairs_.end()) {
    return FailedPrecondition("stage {} has no connection to stage {}", stage_, peer);
  }
  return pair->second.links.get();
}

absl::StatusOr<std::byte*> GroupLinks::Reserve(const StageMessage& message,
                                               absl::Duration timeout) {
  SHOAL_ASSIGN_OR_RETURN(TransportLinks* const links, LinksTo(message.peer));
  return links->Reserve(message, timeout);
}

absl::Status GroupLinks::Send(const StageMessage& message) {
  SHOAL_ASSIGN_OR_RETURN(TransportLinks* const links, LinksTo(message.peer));
  return links->Send(message);
}

absl::Status GroupLinks::Post(const StageMessage& message) {
  SHOAL_ASSIGN_OR_RETURN(TransportLinks* const links, LinksTo(message.peer));
  return links->Post(message);
}

absl::StatusOr<const std::byte*> GroupLinks::Await(const StageMessage& message,
                                                   absl::Duration timeout) {
  SHOAL_ASSIGN_OR_RETURN(TransportLinks* const links, LinksTo(message.peer));
  return links->Await(message, timeout);
}

absl::Status GroupLinks::Consumed(const StageMessage& message) {
  SHOAL_ASSIGN_OR_RETURN(TransportLinks* const links, LinksTo(message.peer));
  return links->Consumed(message);
}

bool GroupLinks::OnDevice(int peer) const {
  const auto pair = pairs_.find(peer);
  return pair != pairs_.end() && pair->second.links->OnDevice(peer);
}

void GroupLinks::Close(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  for (auto& [peer, pair] : pairs_) {
    pair.links->Close(why);
  }
}

absl::Status GroupLinks::status() const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [peer, pair] : pairs_) {
    SHOAL_RETURN_IF_ERROR(pair.links->status());
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
