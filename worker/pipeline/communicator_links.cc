#include "worker/pipeline/communicator_links.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"

namespace shoal::worker {
namespace {

// Between two looks at whether the step goes on.
constexpr absl::Duration kLook = absl::Milliseconds(20);

// Whether nothing was heard in that time. Links that were closed because some time was up say so
// without waiting.
bool IsSilence(const absl::Status& status, absl::Time asked) {
  return absl::IsDeadlineExceeded(status) && absl::Now() - asked >= kLook / 2;
}

}  // namespace

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
    pairs_.clear();
  }
  SHOAL_RETURN_IF_ERROR(TakePlaces(step));
  const std::vector<plan::MessageQueue> words = WordQueues(step.queues);
  const std::vector<int64_t> bytes = WordBytes(words);
  SHOAL_RETURN_IF_ERROR(host->BeginStep(
      {.step = step.step, .attempt = step.attempt, .queues = words, .bytes = bytes}));
  std::vector<int> peers;  // of the step, in order
  for (const plan::MessageQueue& queue : words) {
    if (queue.from == options_.stage) {
      peers.push_back(queue.to);
    }
  }
  for (const int peer : peers) {
    std::unique_ptr<Pair>& pair = pairs_[peer];
    if (pair == nullptr) {
      pair = std::make_unique<Pair>(options_.stage, peer,
                                    CommunicatorPair::Options{.stage = options_.stage,
                                                              .peer = peer,
                                                              .device = options_.device,
                                                              .collectives = options_.collectives,
                                                              .timeout = options_.timeout},
                                    this);
    }
    SHOAL_RETURN_IF_ERROR(Connect(*pair, *host, words));
  }
  threads_.emplace_back([this] { AwaitReady(); });
  for (const int peer : peers) {
    threads_.emplace_back([this, &pair = *pairs_[peer], peer] { HearWords(pair, peer); });
  }
  return absl::OkStatus();
}

absl::Status CommunicatorLinks::TakePlaces(const StepMessages& step) {
  bytes_.assign(step.bytes.begin(), step.bytes.end());
  const int64_t longest = bytes_.empty() ? 0 : std::ranges::max(bytes_);
  absl::MutexLock lock(&mutex_);
  if (longest > place_bytes_) {
    ends_.clear();
    place_bytes_ = longest;
  }
  for (const plan::MessageQueue& queue : step.queues) {
    const bool outgoing = queue.from == options_.stage;
    if (!outgoing && queue.to != options_.stage) {
      continue;
    }
    End& end = ends_[{outgoing ? queue.to : queue.from, queue.gradients, outgoing}];
    const int places = outgoing ? queue.send_buffers : queue.slots;
    while (end.spare.size() < static_cast<size_t>(places)) {
      SHOAL_ASSIGN_OR_RETURN(Buffer memory, options_.device->Allocate(place_bytes_));
      end.spare.push_back({.memory = std::move(memory)});
    }
  }
  return absl::OkStatus();
}

absl::Status CommunicatorLinks::Connect(Pair& pair, StageLinks& host,
                                        std::span<const plan::MessageQueue> words) {
  const bool anew = !pair.communicators.connected();
  SHOAL_RETURN_IF_ERROR(pair.words.BeginStep(host, words, anew));
  if (!anew) {
    return absl::OkStatus();
  }
  LinkIds ids;
  if (pair.words.lower()) {
    SHOAL_ASSIGN_OR_RETURN(ids, pair.communicators.NewIds());
    SHOAL_RETURN_IF_ERROR(pair.words.SayIds(ids));
  } else {
    SHOAL_ASSIGN_OR_RETURN(ids, HearIds(pair));
  }
  const auto connecting = [&](bool now) {
    absl::MutexLock lock(&pair.connecting_mutex);
    pair.connecting = now;
  };
  connecting(true);
  const absl::Status connected = pair.communicators.Connect(ids);
  connecting(false);
  return connected;
}

absl::Status CommunicatorLinks::CheckPair(Pair& pair) const {
  if (options_.check != nullptr) {
    SHOAL_RETURN_IF_ERROR(options_.check());
  }
  absl::MutexLock lock(&pair.connecting_mutex);
  return pair.connecting ? pair.words.CheckOpen() : absl::OkStatus();
}

void CommunicatorLinks::AbortPairs(const absl::Status& why) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (const auto& [peer, pair] : pairs_) {
    std::ranges::move(pair->communicators.communicators(), std::back_inserter(communicators));
  }
  AbortAtOnce(communicators, why);
}

absl::StatusOr<LinkIds> CommunicatorLinks::HearIds(Pair& pair) const {
  const absl::Time deadline = absl::Now() + options_.timeout;
  while (true) {
    const absl::Time asked = absl::Now();
    absl::StatusOr<LinkIds> ids = pair.words.HearIds(kLook);
    if (ids.ok()) {
      return ids;
    }
    if (!IsSilence(ids.status(), asked) || asked >= deadline) {
      return Annotate(ids.status(), "the ids of communicators");
    }
    SHOAL_RETURN_IF_ERROR(check());
  }
}

absl::Status CommunicatorLinks::EndStep(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  StageLinks* host = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto started = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return unstarted_ == 0 || !failure_.ok();
    };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&started), deadline)) {
      return DeadlineExceeded("of {} messages neighbours were not ready within {}", unstarted_,
                              absl::FormatDuration(timeout));
    }
    SHOAL_RETURN_IF_ERROR(failure_);
    host = host_;
  }
  StopThreads();  // they have heard all that is said in a step
  SHOAL_RETURN_IF_ERROR(failure());
  for (auto& [peer, pair] : pairs_) {
    SHOAL_RETURN_IF_ERROR(pair->communicators.AwaitDone(deadline));
  }
  SHOAL_RETURN_IF_ERROR(host->EndStep(std::max(deadline - absl::Now(), absl::ZeroDuration())));
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
  // First neighbours are told: they abort theirs, which ours may wait for.
  if (host != nullptr) {
    host->Close(why);
  }
  AbortPairs(why);
}

void CommunicatorLinks::Abandon(const absl::Status& why) {
  Fail(why);
  StopThreads();
  for (auto& [peer, pair] : pairs_) {
    pair->communicators.Synchronize();
  }
  pairs_.clear();
  absl::MutexLock lock(&mutex_);
  pending_.clear();
  ends_.clear();
  host_ = nullptr;
}

absl::Status CommunicatorLinks::failure() const {
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

absl::StatusOr<std::byte*> CommunicatorLinks::MakeRoom(const StageMessage& message,
                                                       absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::unique_ptr<Event> sent;
  std::byte* room = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find({message.peer, message.gradient, /*outgoing=*/true}));
    const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !end->spare.empty() || !failure_.ok();
    };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&free), deadline)) {
      return DeadlineExceeded("the messages before it were not received within {}",
                              absl::FormatDuration(timeout));
    }
    SHOAL_RETURN_IF_ERROR(failure_);
    Place place = std::move(end->spare.front());
    end->spare.pop_front();
    sent = std::move(place.done);
    room = place.memory.data();
    end->made.insert_or_assign(message, std::move(place));
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
  Place place = std::move(end->spare.front());
  end->spare.pop_front();
  std::unique_ptr<Event> used = std::move(place.done);
  ++unstarted_;
  pending_.push_back(
      {.key = key, .transfer = {message, std::move(place)}, .after = std::move(used)});
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> CommunicatorLinks::Await(const StageMessage& message,
                                                          absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::unique_ptr<Event> received;
  const std::byte* data = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find({message.peer, message.gradient, /*outgoing=*/false}));
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return end->coming.contains(message) || !failure_.ok();
    };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&there), deadline)) {
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
  Place place;
  const EndKey key = {message.peer, message.gradient, /*outgoing=*/false};
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
    auto used = end->in_use.extract(message);
    if (used.empty()) {
      return Internal("{} is consumed and was not there", NameOf(message));
    }
    place = std::move(used.mapped());
  }
  if (options_.poison) {
    options_.compute->Fill(place.memory.data(), std::byte{0xFF}, place_bytes_);
  }
  place.done = options_.compute->Record();
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
  end->spare.push_back(std::move(place));
  return absl::OkStatus();
}

// What is under way with a communicator that fails ends too: then it is not done.
absl::Status CommunicatorLinks::AwaitDone(Event& transfer, int peer, absl::Time deadline) {
  while (!transfer.WaitDone(kLook)) {
    SHOAL_RETURN_IF_ERROR(failure());
    if (absl::Now() >= deadline) {
      return DeadlineExceeded("stage {} was ready, but what is under way with it did not end",
                              peer);
    }
  }
  SHOAL_RETURN_IF_ERROR(transfer.Wait());
  return pairs_.at(peer)->communicators.status();
}

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
    while (!pending.after->WaitDone(kLook)) {
      SHOAL_RETURN_IF_ERROR(failure());
      SHOAL_RETURN_IF_ERROR(check());
    }
    SHOAL_RETURN_IF_ERROR(pending.after->Wait());
  }
  Pair& pair = *pairs_.at(pending.key.peer);
  const LinkWord word = WordOf(pending.key, pending.transfer.message);
  const auto ready = [&] {
    absl::MutexLock lock(&mutex_);
    ends_[pending.key].ready.push_back(std::move(pending.transfer));
  };
  if (pair.words.lower()) {
    absl::MutexLock starting(&pair.starting);
    ready();
    return StartMatched(pair, pending.key);
  }
  ready();  // first: the answer may come at once
  return pair.words.Say(word);
}

void CommunicatorLinks::HearWords(Pair& pair, int peer) {
  for (int heard = 0; heard < pair.words.messages(); ++heard) {
    const absl::StatusOr<LinkWord> word = HearWord(pair);
    const absl::Status status = word.ok() ? TakeWord(pair, peer, *word) : word.status();
    if (!status.ok()) {
      Fail(status);
      return;
    }
  }
}

absl::StatusOr<LinkWord> CommunicatorLinks::HearWord(Pair& pair) {
  while (true) {
    const absl::Time asked = absl::Now();
    absl::StatusOr<LinkWord> word = pair.words.Hear(kLook);
    if (!IsSilence(word.status(), asked)) {
      return word;
    }
    SHOAL_RETURN_IF_ERROR(check());
    SHOAL_RETURN_IF_ERROR(pair.communicators.status());
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(failure_);
    if (stopping_) {
      return Internal("stage {} ended its step before all its messages", options_.stage);
    }
  }
}

absl::Status CommunicatorLinks::TakeWord(Pair& pair, int peer, const LinkWord& word) {
  const EndKey key = {peer, word.gradient != 0, word.from == options_.stage};
  absl::MutexLock starting(&pair.starting);
  Transfer transfer;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
    if (pair.words.lower()) {
      end->heard.push_back(word);
    } else if (end->ready.empty()) {
      return DataLoss("stage {} began with a message that this stage is not ready for", peer);
    } else {
      transfer = std::move(end->ready.front());
      end->ready.pop_front();
    }
  }
  if (pair.words.lower()) {
    return StartMatched(pair, key);
  }
  SHOAL_RETURN_IF_ERROR(CheckWord(key, transfer.message, word));
  return Start(pair, key, std::move(transfer));
}

absl::Status CommunicatorLinks::StartMatched(Pair& pair, const EndKey& key) {
  while (true) {
    Transfer transfer;
    LinkWord word;
    {
      absl::MutexLock lock(&mutex_);
      SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
      if (end->ready.empty() || end->heard.empty()) {
        return absl::OkStatus();
      }
      transfer = std::move(end->ready.front());
      end->ready.pop_front();
      word = end->heard.front();
      end->heard.pop_front();
    }
    SHOAL_RETURN_IF_ERROR(CheckWord(key, transfer.message, word));
    SHOAL_RETURN_IF_ERROR(Start(pair, key, std::move(transfer)));
    SHOAL_RETURN_IF_ERROR(pair.words.Say(word));
  }
}

absl::Status CommunicatorLinks::Start(Pair& pair, const EndKey& key, Transfer transfer) {
  const StageMessage& message = transfer.message;
  Place& place = transfer.place;
  SHOAL_ASSIGN_OR_RETURN(
      place.done,
      key.outgoing
          ? pair.communicators.Send(place.memory.data(), BytesOf(message), NameOf(message))
          : pair.communicators.Receive(place.memory.data(), BytesOf(message), NameOf(message)));
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(End * end, Find(key));
  --unstarted_;
  if (key.outgoing) {
    end->spare.push_back(std::move(place));
  } else {
    end->coming.insert_or_assign(message, std::move(place));
  }
  return absl::OkStatus();
}

LinkWord CommunicatorLinks::WordOf(const EndKey& key, const StageMessage& message) const {
  return {.from = key.outgoing ? options_.stage : key.peer,
          .gradient = message.gradient ? 1 : 0,
          .chunk = message.chunk,
          .microbatch = message.microbatch};
}

absl::Status CommunicatorLinks::CheckWord(const EndKey& key, const StageMessage& message,
                                          const LinkWord& word) const {
  if (word != WordOf(key, message)) {
    return DataLoss("stage {} speaks of chunk {} microbatch {} where {} is next", key.peer,
                    word.chunk, word.microbatch, NameOf(message));
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
