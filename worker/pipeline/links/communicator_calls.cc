// The threads of a step of CommunicatorLinks: wait until messages are made and buffers free, hear
// what neighbours are ready for, and put calls on the device in the order of communicator_links.h.
#include <utility>

#include "core/base/status.h"
#include "worker/pipeline/links/communicator_links.h"

namespace shoal::worker {
void CommunicatorLinks::AwaitReady() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !failure_.ok() || !pending_.empty();
  };
  while (true) {
    Pending pending;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (!failure_.ok() || pending_.empty()) {
        return;
      }
      pending = std::move(pending_.front());
      pending_.pop_front();
    }
    if (const absl::Status status = MakeReady(std::move(pending)); !status.ok()) {
      Fail(status);
    }
  }
}

absl::Status CommunicatorLinks::MakeReady(Pending pending) {
  if (pending.after != nullptr) {
    while (!pending.after->WaitDone(kLookAgain)) {
      SHOAL_RETURN_IF_ERROR(status());
      SHOAL_RETURN_IF_ERROR(check());
    }
    SHOAL_RETURN_IF_ERROR(pending.after->Wait());
  }
  LinkedPair& pair = *pairs_.at(pending.key.peer);
  const ControlMessage control = ControlOf(pending.key, pending.transfer.message);
  const auto ready = [&] {
    absl::MutexLock lock(&mutex_);
    ends_[pending.key].ready.push_back(std::move(pending.transfer));
  };
  if (pair.control().lower()) {
    absl::MutexLock starting(&pair.starting);
    ready();
    return StartMatched(pair, pending.key);
  }
  ready();  // first: the answer may come at once
  return pair.control().Say(control);
}

void CommunicatorLinks::HearAll(LinkedPair& pair, int peer) {
  for (int heard = 0; heard < pair.control().messages(); ++heard) {
    const absl::StatusOr<ControlMessage> control = HearNext(pair);
    const absl::Status status = control.ok() ? TakeControl(pair, peer, *control) : control.status();
    if (!status.ok()) {
      Fail(status);
      return;
    }
  }
}

absl::StatusOr<ControlMessage> CommunicatorLinks::HearNext(LinkedPair& pair) {
  return pair.control().Hear([&]() -> absl::Status {
    SHOAL_RETURN_IF_ERROR(check());
    SHOAL_RETURN_IF_ERROR(pair.communicators().status());
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(failure_);
    return stopping_ ? Internal("stage {} ended its step before all its messages", options_.stage)
                     : absl::OkStatus();
  });
}

absl::Status CommunicatorLinks::TakeControl(LinkedPair& pair, int peer,
                                            const ControlMessage& control) {
  const EndKey key = {peer, control.gradient != 0, control.from == options_.stage};
  absl::MutexLock starting(&pair.starting);
  Transfer transfer;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
    if (pair.control().lower()) {
      end->heard.push_back(control);
    } else if (end->ready.empty()) {
      return DataLoss("stage {} began with a message that this stage is not ready for", peer);
    } else {
      transfer = std::move(end->ready.front());
      end->ready.pop_front();
    }
  }
  if (pair.control().lower()) {
    return StartMatched(pair, key);
  }
  SHOAL_RETURN_IF_ERROR(CheckControl(key, transfer.message, control));
  return Start(pair, key, std::move(transfer));
}

absl::Status CommunicatorLinks::StartMatched(LinkedPair& pair, const EndKey& key) {
  while (true) {
    Transfer transfer;
    ControlMessage control;
    {
      absl::MutexLock lock(&mutex_);
      SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
      if (end->ready.empty() || end->heard.empty()) {
        return absl::OkStatus();
      }
      transfer = std::move(end->ready.front());
      end->ready.pop_front();
      control = end->heard.front();
      end->heard.pop_front();
    }
    SHOAL_RETURN_IF_ERROR(CheckControl(key, transfer.message, control));
    SHOAL_RETURN_IF_ERROR(Start(pair, key, std::move(transfer)));
    SHOAL_RETURN_IF_ERROR(pair.control().Say(control));
  }
}

absl::Status CommunicatorLinks::Start(LinkedPair& pair, const EndKey& key, Transfer transfer) {
  const StageMessage& message = transfer.message;
  MessageBuffer& buffer = transfer.buffer;
  SHOAL_ASSIGN_OR_RETURN(
      buffer.done,
      key.outgoing
          ? pair.communicators().Send(buffer.memory.data(), BytesOf(message), NameOf(message))
          : pair.communicators().Receive(buffer.memory.data(), BytesOf(message), NameOf(message)));
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
  --unstarted_;
  if (key.outgoing) {
    end->spare.push_back(std::move(buffer));
  } else {
    end->coming.insert_or_assign(message, std::move(buffer));
  }
  return absl::OkStatus();
}

ControlMessage CommunicatorLinks::ControlOf(const EndKey& key, const StageMessage& message) const {
  return {.from = key.outgoing ? options_.stage : key.peer,
          .gradient = message.gradient ? 1 : 0,
          .chunk = message.chunk,
          .microbatch = message.microbatch};
}

absl::Status CommunicatorLinks::CheckControl(const EndKey& key, const StageMessage& message,
                                             const ControlMessage& control) const {
  if (control != ControlOf(key, message)) {
    return DataLoss("stage {} speaks of chunk {} microbatch {} where {} is next", key.peer,
                    control.chunk, control.microbatch, NameOf(message));
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
