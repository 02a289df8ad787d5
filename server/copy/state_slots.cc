#include "server/copy/state_slots.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/negotiate.h"
#include "server/copy/state_copy.h"

namespace shoal::server {
namespace {

constexpr size_t kEvents = 4;  // of a connection over which nothing is asked: that it is closed
constexpr size_t kLongestName = 64;  // of a reader, by itself

}  // namespace

StateSlots::StateSlots(std::vector<transport::Transport*> transports,
                       std::vector<std::string> unavailable)
    : transports_(std::move(transports)), unavailable_(std::move(unavailable)) {}

void StateSlots::DropClosed() {
  std::erase_if(readers_, [](const auto& reader) {
    std::array<transport::Event, kEvents> events;
    bool closed = false;
    for (size_t count = events.size(); count == events.size() && !closed;) {
      count = reader.second->queue->Poll(events);
      closed =
          std::ranges::find(events.begin(), events.begin() + count, transport::Event::Kind::kClosed,
                            &transport::Event::kind) != events.begin() + count;
    }
    return closed;
  });
}

absl::StatusOr<proto::ConnectStateReply> StateSlots::Connect(
    const proto::ConnectStateRequest& request) {
  if (request.reader().empty() || request.reader().size() > kLongestName ||
      request.name().size() > kLongestName) {
    return InvalidArgument("a reader of state has a name of 1 to {} characters", kLongestName);
  }
  absl::MutexLock lock(&mutex_);
  DropClosed();
  readers_.erase(request.reader());  // whose connection was not completed
  if (readers_.size() >= kMostStateSlots) {
    return ResourceExhausted("{} servers read state here, which is the limit", kMostStateSlots);
  }
  std::shared_ptr<Reader> reader;
  SHOAL_ASSIGN_OR_RETURN(
      transport::TakenOffer taken,
      transport::TakeOffer(transport::NamesOf(transports_), transport::ReadOffers(request.offers()),
                           request.name(), unavailable_,
                           [&](size_t index, const std::string& offer) {
                             return Accept(*transports_[index], offer, request.name(), reader);
                           }));
  readers_[request.reader()] = std::move(reader);
  LogInfo("{} reads state over {}", request.name(), taken.transport);
  proto::ConnectStateReply reply;
  reply.set_transport(taken.transport);
  reply.set_answer(std::move(taken.answer));
  reply.set_reason(taken.reason);
  return reply;
}

absl::StatusOr<std::string> StateSlots::Accept(transport::Transport& transport,
                                               const std::string& offer, const std::string& name,
                                               std::shared_ptr<Reader>& reader) {
  reader = std::make_shared<Reader>();
  SHOAL_ASSIGN_OR_RETURN(reader->queue, transport.CreateQueue());
  SHOAL_ASSIGN_OR_RETURN(reader->slots, transport.Allocate(kReadsAtOnce * kStateSlotBytes,
                                                           transport::Access::kRemoteRead));
  SHOAL_ASSIGN_OR_RETURN(
      transport::Acceptance accepted,
      transport.Accept(offer,
                       {.queue = reader->queue.get(), .exposed = {reader->slots}, .peer = name}));
  reader->connection = std::move(accepted.connection);
  return std::move(accepted.answer);
}

absl::StatusOr<proto::ReadStateReply> StateSlots::Fill(const proto::ReadStateRequest& request,
                                                       const Read& read) const {
  std::shared_ptr<Reader> reader;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = readers_.find(request.reader()); found != readers_.end()) {
      reader = found->second;
    }
  }
  if (reader == nullptr || request.slot() < 0 || request.slot() >= kReadsAtOnce) {
    return read({});
  }
  const auto slot = static_cast<size_t>(request.slot());
  // An earlier try of the call may still be at it: bytes and hash must be of one of them.
  absl::MutexLock lock(&reader->filling[slot]);
  return read(reader->slots->bytes().subspan(slot * size_t{kStateSlotBytes}, kStateSlotBytes));
}

}  // namespace shoal::server
