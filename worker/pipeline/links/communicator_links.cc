#include "worker/pipeline/links/communicator_links.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {
CommunicatorLinks::CommunicatorLinks(Options options) : options_(std::move(options)) {}

CommunicatorLinks::~CommunicatorLinks() {
  if (!threads_.empty()) {  // in the middle of a step
    Abandon(Cancelled("stage {} goes", options_.stage));
  }
}

void CommunicatorLinks::Attach(StageLinks& host) {
  absl::MutexLock lock(&mutex_);
  host_ = &host;
}

absl::Status CommunicatorLinks::BeginStep(const StepMessages& step) {
  absl::Status begun = Begin(step);
  if (!begun.ok()) {
    Abandon(begun);
  }
  return begun;
}

absl::Status CommunicatorLinks::Begin(const StepMessages& step) {
  StageLinks* host = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    failure_ = absl::OkStatus();
    stopping_ = false;
    unstarted_ = 0;
    host = host_;
  }
  if (step.attempt > 1) {  // neighbours may have left those of the attempt before: no farewell
    AbortPairs(Aborted("step {} attempt {} begins", step.step, step.attempt));
    DropPairs();
  }
  SHOAL_RETURN_IF_ERROR(TakeBuffers(step));
  const std::vector<plan::MessageQueue> control = ControlQueues(step.queues);
  const std::vector<int64_t> bytes = ControlBytes(control);
  SHOAL_RETURN_IF_ERROR(host->BeginStep(
      {.step = step.step, .attempt = step.attempt, .queues = control, .bytes = bytes}));
  std::vector<int> peers;  // of the step, in order
  for (const plan::MessageQueue& queue : control) {
    if (queue.from == options_.stage) {
      peers.push_back(queue.to);
    }
  }
  SHOAL_RETURN_IF_ERROR(Connect(peers, *host, control));
  threads_.emplace_back([this] { AwaitReady(); });
  for (const int peer : peers) {
    threads_.emplace_back([this, &pair = *pairs_[peer], peer] { HearAll(pair, peer); });
  }
  return absl::OkStatus();
}

absl::Status CommunicatorLinks::TakeBuffers(const StepMessages& step) {
  bytes_.assign(step.bytes.begin(), step.bytes.end());
  const int64_t longest = bytes_.empty() ? 0 : std::ranges::max(bytes_);
  absl::MutexLock lock(&mutex_);
  if (longest > message_bytes_) {
    ends_.clear();
    message_bytes_ = longest;
  }
  for (const plan::MessageQueue& queue : step.queues) {
    const bool outgoing = queue.from == options_.stage;
    if (!outgoing && queue.to != options_.stage) {
      continue;
    }
    End& end = ends_[{outgoing ? queue.to : queue.from, queue.gradients, outgoing}];
    const int buffers = outgoing ? queue.send_buffers : queue.slots;
    while (end.spare.size() < static_cast<size_t>(buffers)) {
      SHOAL_ASSIGN_OR_RETURN(Buffer memory, options_.device->Allocate(message_bytes_));
      end.spare.push_back({.memory = std::move(memory)});
    }
  }
  return absl::OkStatus();
}

absl::Status CommunicatorLinks::Connect(std::span<const int> peers, StageLinks& host,
                                        std::span<const plan::MessageQueue> control) {
  for (const int peer : peers) {
    if (!pairs_.contains(peer)) {
      auto made = std::make_unique<LinkedPair>(
          CommunicatorPair::Options{.stage = options_.stage,
                                    .peer = peer,
                                    .device = options_.device,
                                    .collectives = options_.collectives,
                                    .timeout = options_.timeout,
                                    .check = options_.check});
      absl::MutexLock lock(&mutex_);
      pairs_[peer] = std::move(made);
    }
    SHOAL_RETURN_IF_ERROR(pairs_.at(peer)->BeginStep(host, control));
  }
  return absl::OkStatus();
}

void CommunicatorLinks::AbortPairs(const absl::Status& why) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [peer, pair] : pairs_) {
      std::ranges::move(pair->communicators().communicators(), std::back_inserter(communicators));
    }
  }
  AbortAtOnce(communicators, why);
}

void CommunicatorLinks::DropPairs() {
  std::map<int, std::unique_ptr<LinkedPair>>
      dropped;  // destroyed without the lock: that takes a while
  absl::MutexLock lock(&mutex_);
  dropped.swap(pairs_);
}

absl::Status CommunicatorLinks::EndStep(absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  StageLinks* host = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto started = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return unstarted_ == 0 || !failure_.ok();
    };
    if (!AwaitUntil(&mutex_, absl::Condition(&started), deadline)) {
      return DeadlineExceeded("of {} messages neighbours were not ready within {}", unstarted_,
                              absl::FormatDuration(timeout));
    }
    SHOAL_RETURN_IF_ERROR(failure_);
    host = host_;
  }
  StopThreads();  // they have heard all control messages of the step
  SHOAL_RETURN_IF_ERROR(status());
  for (auto& [peer, pair] : pairs_) {
    SHOAL_RETURN_IF_ERROR(pair->communicators().AwaitDone(deadline));
  }
  SHOAL_RETURN_IF_ERROR(
      host->EndStep(std::max(deadline - RealClock().Now(), absl::ZeroDuration())));
  absl::MutexLock lock(&mutex_);
  host_ = nullptr;
  return absl::OkStatus();
}

void CommunicatorLinks::StopThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

void CommunicatorLinks::Fail(const absl::Status& why) {
  StageLinks* host = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) {
      return;
    }
    failure_ = why;
    host = host_;
  }
  // Tells neighbours first: they abort their communicators, which ours may wait for.
  if (host != nullptr) {
    host->Close(why);
  }
  AbortPairs(why);
}

void CommunicatorLinks::Abandon(const absl::Status& why) {
  Fail(why);
  StopThreads();
  for (auto& [peer, pair] : pairs_) {
    pair->communicators().Synchronize();
  }
  DropPairs();
  absl::MutexLock lock(&mutex_);
  pending_.clear();
  ends_.clear();
  host_ = nullptr;
}

absl::Status CommunicatorLinks::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::StatusOr<CommunicatorLinks::End*> CommunicatorLinks::Find(const EndKey& key) {
  SHOAL_RETURN_IF_ERROR(failure_);
  const auto found = ends_.find(key);
  if (found == ends_.end()) {
    return FailedPrecondition("stage {} has no queue {} stage {}", options_.stage,
                              key.outgoing ? "to" : "from", key.peer);
  }
  return &found->second;
}

absl::StatusOr<std::byte*> CommunicatorLinks::Reserve(const StageMessage& message,
                                                      absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  std::unique_ptr<Event> sent;
  std::byte* room = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find({message.peer, message.gradient, /*outgoing=*/true}));
    const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !end->spare.empty() || !failure_.ok();
    };
    if (!AwaitUntil(&mutex_, absl::Condition(&free), deadline)) {
      return DeadlineExceeded("the messages before it were not received within {}",
                              absl::FormatDuration(timeout));
    }
    SHOAL_RETURN_IF_ERROR(failure_);
    MessageBuffer buffer = std::move(end->spare.front());
    end->spare.pop_front();
    sent = std::move(buffer.done);
    room = buffer.memory.data();
    end->made.insert_or_assign(message, std::move(buffer));
  }
  if (sent != nullptr) {
    SHOAL_RETURN_IF_ERROR(AwaitDone(*sent, message.peer, deadline));
  }
  return room;
}

absl::Status CommunicatorLinks::Send(const StageMessage& message) {
  const EndKey key = {message.peer, message.gradient, /*outgoing=*/true};
  std::unique_ptr<Event> made_until = options_.compute->Record();
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
  auto made = end->made.extract(message);
  if (made.empty()) {
    return Internal("{} is sent without room", NameOf(message));
  }
  ++unstarted_;
  pending_.push_back({.key = key,
                      .transfer = {message, std::move(made.mapped())},
                      .after = std::move(made_until)});
  return absl::OkStatus();
}

absl::Status CommunicatorLinks::Post(const StageMessage& message) {
  const EndKey key = {message.peer, message.gradient, /*outgoing=*/false};
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
  if (end->spare.empty()) {
    return Internal("{}: more receives of the queue are posted than it has slots", NameOf(message));
  }
  MessageBuffer buffer = std::move(end->spare.front());
  end->spare.pop_front();
  std::unique_ptr<Event> used = std::move(buffer.done);
  ++unstarted_;
  pending_.push_back(
      {.key = key, .transfer = {message, std::move(buffer)}, .after = std::move(used)});
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> CommunicatorLinks::Await(const StageMessage& message,
                                                          absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  std::unique_ptr<Event> received;
  const std::byte* data = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find({message.peer, message.gradient, /*outgoing=*/false}));
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return end->coming.contains(message) || !failure_.ok();
    };
    if (!AwaitUntil(&mutex_, absl::Condition(&there), deadline)) {
      return DeadlineExceeded("it did not come within {}", absl::FormatDuration(timeout));
    }
    SHOAL_RETURN_IF_ERROR(failure_);
    auto coming = end->coming.extract(message);
    received = std::move(coming.mapped().done);
    data = coming.mapped().memory.data();
    end->in_use.insert(std::move(coming));
  }
  SHOAL_RETURN_IF_ERROR(AwaitDone(*received, message.peer, deadline));
  return data;
}

absl::Status CommunicatorLinks::Consumed(const StageMessage& message) {
  MessageBuffer buffer;
  const EndKey key = {message.peer, message.gradient, /*outgoing=*/false};
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
    auto used = end->in_use.extract(message);
    if (used.empty()) {
      return Internal("{} is consumed and was not there", NameOf(message));
    }
    buffer = std::move(used.mapped());
  }
  if (options_.poison) {
    options_.compute->Fill(buffer.memory.data(), std::byte{0xFF}, message_bytes_);
  }
  buffer.done = options_.compute->Record();
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
  end->spare.push_back(std::move(buffer));
  return absl::OkStatus();
}

// Transfers of a communicator that fails end too, without being done.
absl::Status CommunicatorLinks::AwaitDone(Event& transfer, int peer, absl::Time deadline) {
  while (!transfer.WaitDone(kLookAgain)) {
    SHOAL_RETURN_IF_ERROR(status());
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("stage {} was ready, but what is under way with it did not end",
                              peer);
    }
  }
  SHOAL_RETURN_IF_ERROR(transfer.Wait());
  return pairs_.at(peer)->communicators().status();
}

}  // namespace shoal::worker
