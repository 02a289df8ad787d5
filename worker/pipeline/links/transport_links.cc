#include "worker/pipeline/links/transport_links.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

// Longest sleep without work: Wake() ends it, so this only bounds the cost of a lost wake-up.
constexpr absl::Duration kIdle = absl::Milliseconds(500);
// Before retrying what a full queue, or a peer that is not ready, refused.
constexpr absl::Duration kAgain = absl::Milliseconds(1);
// Events of connections that the peer may use before this side knows them.
constexpr size_t kMostEarly = 16384;
// For connections to end; transports bound that themselves.
constexpr absl::Duration kEnding = absl::Seconds(30);

// Operations' ids: a message's buffer and queue, or none of them.
constexpr uint64_t kDoorbellAlone = ~uint64_t{0};
uint64_t IdOf(size_t buffer, bool gradients) { return buffer * 2 + (gradients ? 1 : 0); }

}  // namespace

// A doorbell, with what is written before and with it; empty if NextPosting found nothing.
struct TransportLinks::Posting {
  std::array<transport::WriteOperation, 2> operations;
  size_t count = 0;
  OutgoingQueue* message = nullptr;
  IncomingQueue* receive = nullptr;  // neither: the greeting

  void Ring(uint32_t immediate) {
    operations[count++] = {.id = kDoorbellAlone, .ring = true, .immediate = immediate};
  }
  void Write(const OutgoingQueue::Write& write, uint64_t id) {
    const bool apart = !write.header.from.empty();
    operations[count++] = {.id = id,
                           .region = kSlotsRegion,
                           .offset = write.message.offset,
                           .from = write.message.from,
                           .ring = !apart,
                           .immediate = write.immediate};
    if (apart) {
      operations[count++] = {.id = id,
                             .region = kSlotHeadersRegion,
                             .offset = write.header.offset,
                             .from = write.header.from,
                             .ring = true,
                             .immediate = write.immediate};
    }
  }
};

absl::StatusOr<std::unique_ptr<TransportLinks>> TransportLinks::Create(
    const TransportLinksOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(auto queue, options.transport->CreateQueue());
  return std::unique_ptr<TransportLinks>(new TransportLinks(options, std::move(queue)));
}

TransportLinks::TransportLinks(const TransportLinksOptions& options,
                               std::unique_ptr<transport::EventQueue> queue)
    : options_(options), queue_(std::move(queue)), thread_([this] { RunThread(); }) {}

TransportLinks::~TransportLinks() {
  Close(Cancelled("stage {} closes its links", options_.stage));
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time deadline = RealClock().Now() + kEnding;
    const auto all_gone = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::ranges::all_of(peers_, [](const auto& entry) { return entry.second->gone; });
    };
    while (!all_gone() && !changed_.Wait(&mutex_, deadline - RealClock().Now())) {
    }
    stopping_ = true;
  }
  queue_->Wake();
  thread_.join();
  absl::MutexLock lock(&mutex_);
  offered_.clear();  // before the queue
  peers_.clear();
}

absl::StatusOr<std::unique_ptr<TransportLinks::Peer>> TransportLinks::NewPeer(int stage) const {
  SHOAL_ASSIGN_OR_RETURN(LinkRegions regions, LinkRegions::Create({.transport = options_.transport,
                                                                   .slots = options_.slots,
                                                                   .buffers = options_.buffers,
                                                                   .device = options_.device,
                                                                   .lent = options_.lent,
                                                                   .host = options_.host}));
  return std::make_unique<Peer>(stage, std::move(regions));
}

transport::ConnectionOptions TransportLinks::OptionsFor(const Peer& peer) const {
  return {.queue = queue_.get(),
          .exposed = peer.regions.exposed(),
          .peer = fmt::format("stage {}", peer.stage),
          .handshake_timeout = options_.handshake_timeout,
          .opens_gpu_memory = options_.device != nullptr};
}

absl::StatusOr<std::string> TransportLinks::Offer(int stage) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Peer> peer, NewPeer(stage));
  SHOAL_ASSIGN_OR_RETURN(peer->connector, options_.transport->Offer(OptionsFor(*peer)));
  peer->greets = true;
  std::string offer = peer->connector->offer();
  absl::MutexLock lock(&mutex_);
  offered_[stage] = std::move(peer);
  return offer;
}

absl::StatusOr<std::string> TransportLinks::Accept(int stage, const std::string& offer) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Peer> peer, NewPeer(stage));
  SHOAL_ASSIGN_OR_RETURN(transport::Acceptance acceptance,
                         options_.transport->Accept(offer, OptionsFor(*peer)));
  peer->connection = std::move(acceptance.connection);
  SHOAL_RETURN_IF_ERROR(Adopt(std::move(peer)));
  return acceptance.answer;
}

absl::Status TransportLinks::Complete(int stage, const std::string& answer) {
  std::unique_ptr<Peer> peer;
  {
    absl::MutexLock lock(&mutex_);
    peer = std::move(offered_[stage]);
    offered_.erase(stage);
  }
  if (peer == nullptr) {
    return FailedPrecondition("stage {} answers an offer that was not made to it", stage);
  }
  SHOAL_ASSIGN_OR_RETURN(peer->connection, peer->connector->Complete(answer));
  return Adopt(std::move(peer));
}

// Takes what the peer did since its side of the connection was complete.
absl::Status TransportLinks::Adopt(std::unique_ptr<Peer> adopted) {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) {
      return closed_;
    }
    const int stage = adopted->stage;
    const auto [place, is_new] = peers_.try_emplace(stage, std::move(adopted));
    if (!is_new) {
      return FailedPrecondition("stage {} is connected already", stage);
    }
    Peer& peer = *place->second;
    for (const transport::Event& event : early_) {
      if (event.connection == peer.connection->id() && failure.ok()) {
        failure = Take(peer, event);
      }
    }
    std::erase_if(early_, [&](const transport::Event& event) {
      return event.connection == peer.connection->id();
    });
  }
  if (!failure.ok()) {
    Fail(failure);
    return failure;
  }
  queue_->Wake();
  return absl::OkStatus();
}

absl::Status TransportLinks::BeginStep(const StepMessages& step) {
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) {
    return closed_;
  }
  step_ = {.step = step.step,
           .attempt = step.attempt,
           .bytes = std::vector<int64_t>(step.bytes.begin(), step.bytes.end())};
  const int64_t longest = step_.bytes.empty() ? 0 : std::ranges::max(step_.bytes);
  for (const plan::MessageQueue& queue : step.queues) {
    const int stage = queue.from == options_.stage ? queue.to : queue.from;
    if ((queue.from == options_.stage || queue.to == options_.stage) && !peers_.contains(stage)) {
      return FailedPrecondition("stage {} has no connection to stage {}", options_.stage, stage);
    }
    if (queue.slots > static_cast<int>(kMaxLinkSlots)) {
      return InvalidArgument("stage {} would post {} receives of stage {} at once", queue.to,
                             queue.slots, queue.from);
    }
  }
  for (auto& [stage, peer] : peers_) {
    const LinkLayout to = LayOut(step.queues, options_.stage, stage, longest);
    const LinkLayout from = LayOut(step.queues, stage, options_.stage, longest);
    const LinkRegions& regions = peer->regions;
    if (!regions.HasCapacityFor(from.slot_capacity(), to.buffer_capacity())) {
      return ResourceExhausted(
          "the links to stage {} have {} B for messages that come and {} B for those that go, and "
          "this step needs {} B and {} B: connect with more",
          stage, regions.slot_capacity().bytes, regions.buffer_capacity().bytes,
          from.slot_capacity().bytes, to.buffer_capacity().bytes);
    }
    for (const bool gradients : {false, true}) {
      const size_t index = gradients ? 1 : 0;
      peer->outgoing[index].BeginStep(step_, to.slots[index], to.buffers[index], regions.buffers());
      peer->incoming[index].BeginStep(step_, from.slots[index], regions.slots());
    }
  }
  return absl::OkStatus();
}

absl::Status TransportLinks::EndStep(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = RealClock().Now() + timeout;
  for (auto& [stage, peer] : peers_) {
    for (const OutgoingQueue& queue : peer->outgoing) {
      while (queue.under_way() > 0) {
        if (!closed_.ok()) {
          return closed_;
        }
        if (changed_.Wait(&mutex_, deadline - RealClock().Now()) && queue.under_way() > 0) {
          return DeadlineExceeded("stage {} did not receive {} messages within {}", stage,
                                  queue.under_way(), absl::FormatDuration(timeout));
        }
      }
    }
  }
  return absl::OkStatus();  // even if closed since
}

absl::StatusOr<TransportLinks::Peer*> TransportLinks::Find(const StageMessage& message) {
  if (!closed_.ok()) {
    return closed_;
  }
  const auto found = peers_.find(message.peer);
  if (found == peers_.end()) {
    return FailedPrecondition("stage {} has no connection to stage {}", options_.stage,
                              message.peer);
  }
  return found->second.get();
}

absl::StatusOr<std::byte*> TransportLinks::Reserve(const StageMessage& message,
                                                   absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = RealClock().Now() + timeout;
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(Peer * peer, Find(message));
    OutgoingQueue& queue = peer->Outgoing(message.gradient);
    if (const std::optional<std::byte*> room = queue.Reserve(message); room.has_value()) {
      return *room;
    }
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("{} messages were not received within {}", queue.under_way(),
                              absl::FormatDuration(timeout));
    }
    changed_.Wait(&mutex_, deadline - RealClock().Now());
  }
}

absl::Status TransportLinks::Send(const StageMessage& message) {
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(Peer * peer, Find(message));
    SHOAL_RETURN_IF_ERROR(peer->Outgoing(message.gradient).Send(message));
  }
  queue_->Wake();
  return absl::OkStatus();
}

absl::Status TransportLinks::Post(const StageMessage& message) {
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_ASSIGN_OR_RETURN(Peer * peer, Find(message));
    SHOAL_RETURN_IF_ERROR(peer->Incoming(message.gradient).Post(message));
  }
  queue_->Wake();
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> TransportLinks::Await(const StageMessage& message,
                                                       absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = RealClock().Now() + timeout;
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(Peer * peer, Find(message));
    if (const std::byte* const found = peer->Incoming(message.gradient).Find(message);
        found != nullptr) {
      return found;
    }
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("it did not come within {}", absl::FormatDuration(timeout));
    }
    changed_.Wait(&mutex_, deadline - RealClock().Now());
  }
}

absl::Status TransportLinks::Consumed(const StageMessage& message) {
  absl::MutexLock lock(&mutex_);
  SHOAL_ASSIGN_OR_RETURN(Peer * peer, Find(message));
  SHOAL_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                         peer->Incoming(message.gradient).Consumed(message));
  if (options_.poison && options_.device == nullptr) {
    std::ranges::fill(memory, std::byte{0xFF});
  }
  return absl::OkStatus();
}

void TransportLinks::Close(const absl::Status& why) {
  SHOAL_CHECK(!why.ok());
  Fail(why);
}

absl::Status TransportLinks::status() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

void TransportLinks::Fail(const absl::Status& why) {
  std::vector<transport::Connection*> connections;  // live as long as the links
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) {
      return;
    }
    closed_ = why;
    changed_.SignalAll();
    for (auto& [stage, peer] : peers_) {
      connections.push_back(peer->connection.get());
    }
  }
  for (transport::Connection* connection : connections) {
    connection->Close();
  }
}

void TransportLinks::RunThread() {
  std::array<transport::Event, 64> events;
  while (true) {
    const size_t count = queue_->Poll(events);
    for (size_t i = 0; i < count; ++i) {
      Handle(events[i]);
    }
    std::vector<Peer*> peers;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
      if (closed_.ok()) {
        for (auto& [stage, peer] : peers_) {
          peers.push_back(peer.get());
        }
      }
    }
    bool worked = count > 0;
    bool again = false;
    for (Peer* peer : peers) {
      worked = PostTo(*peer, again) || worked;
    }
    if (!worked) {
      queue_->Wait(again ? kAgain : kIdle);
    }
  }
}

void TransportLinks::Handle(const transport::Event& event) {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::ranges::find_if(peers_, [&](const auto& entry) {
      return entry.second->connection->id() == event.connection;
    });
    if (found != peers_.end()) {
      failure = Take(*found->second, event);
      changed_.SignalAll();
    } else if (early_.size() < kMostEarly) {
      early_.push_back(event);
    } else {
      failure = DataLoss("stage {}: {} events of connections that are not made", options_.stage,
                         early_.size());
    }
  }
  if (!failure.ok()) {
    Fail(failure);
  }
}

absl::Status TransportLinks::Named(const Peer& peer, const absl::Status& status) {
  return status.ok() ? status : Annotate(status, fmt::format("stage {}", peer.stage));
}

absl::Status TransportLinks::Take(Peer& peer, const transport::Event& event) {
  using Kind = transport::Event::Kind;
  switch (event.kind) {
    case Kind::kClosed:
      peer.gone = true;
      return event.status.ok() ? Unavailable("stage {} closed the connection", peer.stage)
                               : event.status;
    case Kind::kWriteDone:
      if (event.status.ok() && event.operation != kDoorbellAlone) {
        peer.Outgoing(event.operation % 2 == 1).OnWritten(event.operation / 2);
      }
      return event.status;
    case Kind::kDoorbell: {
      const LinkDoorbell doorbell = DecodeDoorbell(event.immediate);
      if (doorbell.kind == LinkDoorbell::Kind::kReceive) {
        return Named(peer,
                     peer.Outgoing(doorbell.gradients).OnReceive(doorbell.number, doorbell.slot));
      }
      if (doorbell.kind == LinkDoorbell::Kind::kMessage) {
        return Named(peer,
                     peer.Incoming(doorbell.gradients).OnMessage(doorbell.number, doorbell.slot));
      }
      return absl::OkStatus();
    }
    default:
      return absl::OkStatus();
  }
}

// Doorbells first: they let the peer go on.
absl::StatusOr<TransportLinks::Posting> TransportLinks::NextPosting(Peer& peer) {
  Posting posting;
  if (peer.greets) {
    posting.Ring(Encode({.kind = LinkDoorbell::Kind::kHello}));
    return posting;
  }
  for (IncomingQueue& queue : peer.incoming) {
    if (const std::optional<uint32_t> doorbell = queue.NextDoorbell(); doorbell.has_value()) {
      posting.Ring(*doorbell);
      posting.receive = &queue;
      return posting;
    }
  }
  for (const bool gradients : {false, true}) {
    OutgoingQueue& queue = peer.Outgoing(gradients);
    SHOAL_ASSIGN_OR_RETURN(const std::optional<OutgoingQueue::Write> write, queue.NextWrite());
    if (write.has_value()) {
      posting.Write(*write, IdOf(write->buffer, gradients));
      posting.message = &queue;
      return posting;
    }
  }
  return posting;
}

bool TransportLinks::PostTo(Peer& peer, bool& again) {
  bool worked = false;
  while (true) {
    absl::StatusOr<Posting> posting = absl::CancelledError();
    {
      absl::MutexLock lock(&mutex_);
      posting = NextPosting(peer);
    }
    if (!posting.ok()) {
      Fail(Named(peer, posting.status()));
      return worked;
    }
    if (posting->count == 0) {
      return worked;
    }
    const absl::Status posted =
        peer.connection->PostWrites({posting->operations.data(), posting->count});
    if (absl::IsResourceExhausted(posted) || absl::IsFailedPrecondition(posted)) {
      again = true;  // a full queue, or the peer has not completed the connection
      return worked;
    }
    if (!posted.ok()) {
      Fail(posted);
      return worked;
    }
    worked = true;
    absl::MutexLock lock(&mutex_);
    if (posting->message != nullptr) {
      posting->message->OnPosted();
    } else if (posting->receive != nullptr) {
      posting->receive->OnPosted();
    } else {
      peer.greets = false;
    }
  }
}

}  // namespace shoal::worker
