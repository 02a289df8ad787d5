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
  std::erase_if(readers_, [](auto& reader) {
    std::array<transport::Event, kEvents> events;
    const size_t count = reader.second.queue->Poll(events);
    return std::ranges::any_of(std::span(events).first(count), [](const transport::Event& event) {
      return event.kind == transport::Event::Kind::kClosed;
    });
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
  if (readers_.size() >= kMostStateSlots) {
    return ResourceExhausted("{} servers read state here, which is the limit", kMostStateSlots);
  }
  std::vector<std::string> names;
  for (const transport::Transport* transport : transports_) {
    names.emplace_back(transport->name());
  }
  std::vector<transport::NamedOffer> offers;
  for (const proto::TransportOffer& offer : request.offers()) {
    offers.push_back({offer.transport(), offer.offer()});
  }
  Reader reader;
  SHOAL_ASSIGN_OR_RETURN(transport::TakenOffer taken,
                         transport::TakeOffer(names, offers, request.name(), unavailable_,
                                              [&](size_t index, const std::string& offer) {
                                                return Accept(*transports_[index], offer,
                                                              request.name(), reader);
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
                                               Reader& reader) const {
  reader = Reader();
  SHOAL_ASSIGN_OR_RETURN(reader.queue, transport.CreateQueue());
  SHOAL_ASSIGN_OR_RETURN(reader.slots, transport.Allocate(kReadsAtOnce * kStateSlotBytes,
                                                          transport::Access::kRemoteRead));
  SHOAL_ASSIGN_OR_RETURN(
      transport::Acceptance accepted,
      transport.Accept(offer,
                       {.queue = reader.queue.get(), .exposed = {reader.slots}, .peer = name}));
  reader.connection = std::move(accepted.connection);
  return std::move(accepted.answer);
}

StateSlots::Slot StateSlots::Find(const proto::ReadStateRequest& request) const {
  absl::MutexLock lock(&mutex_);
  const auto reader = readers_.find(request.reader());
  if (reader == readers_.end() || request.slot() < 0 || request.slot() >= kReadsAtOnce) {
    return {};
  }
  const std::shared_ptr<transport::Region>& slots = reader->second.slots;
  return {.region = slots,
          .bytes = slots->bytes().subspan(static_cast<size_t>(request.slot() * kStateSlotBytes),
                                          static_cast<size_t>(kStateSlotBytes))};
}

}  // namespace shoal::server
