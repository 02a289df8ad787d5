// Agrees on one of several transports for a connection. The connecting side offers all that it has,
// by preference, in one request; the accepting side takes the first of its own order that connects.
// If the connecting side cannot complete that one, it asks again without it. Both learn why it is
// not the first choice, so falling back is never silent. The caller carries the requests.
//
// Plain functions: they block for as long as the callbacks do.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/transport/transport.h"

namespace shoal::transport {

struct NamedOffer {
  std::string transport;
  std::string offer;
};

// By their order.
std::vector<std::string> NamesOf(std::span<Transport* const> transports);

// Of messages that each have a transport and an offer, and back into them.
template <typename Messages>
std::vector<NamedOffer> ReadOffers(const Messages& messages) {
  std::vector<NamedOffer> offers;
  for (const auto& message : messages) {
    offers.push_back({message.transport(), message.offer()});
  }
  return offers;
}
template <typename Messages>
void WriteOffers(std::span<const NamedOffer> offers, Messages& messages) {
  for (const NamedOffer& offer : offers) {
    auto& message = *messages.Add();
    message.set_transport(offer.transport);
    message.set_offer(offer.offer);
  }
}

struct TakenOffer {
  std::string transport;
  std::string answer;
  std::string reason;  // why none before it was taken; empty if it was the first of all
};

// The accepting side, with its transports by preference. `accept` makes the connection from an
// offer for transports[index] and returns the answer. `reasons` say why transports of the job are
// missing here. Unavailable with all reasons, naming the peer, if none connects.
absl::StatusOr<TakenOffer> TakeOffer(
    std::span<const std::string> transports, std::span<const NamedOffer> offers,
    const std::string& peer, std::vector<std::string> reasons,
    const std::function<absl::StatusOr<std::string>(size_t index, const std::string& offer)>&
        accept);

struct ConnectingSide {
  std::string peer;                     // for messages
  std::vector<std::string> transports;  // by preference
  std::vector<bool> left_out;           // by transport: do not offer it
  // Makes an offer for transports[index]; a later one replaces an earlier one.
  std::function<absl::StatusOr<std::string>(size_t index)> offer;
  // Sends the offers to the peer, which takes one of them.
  std::function<absl::StatusOr<TakenOffer>(const std::vector<NamedOffer>& offers)> ask;
  // Makes the connection from the answer to the last offer for transports[index].
  std::function<absl::Status(size_t index, const std::string& answer)> complete;
};

struct Negotiated {
  size_t transport = 0;               // index
  std::string reason;                 // why it is not the first one offered; empty if it is
  std::vector<size_t> not_completed;  // chosen by the peer, but not completed by this side
};

// The connecting side. An error of `ask` ends it; otherwise returns the error of the last transport
// that failed.
absl::StatusOr<Negotiated> Negotiate(const ConnectingSide& side);

}  // namespace shoal::transport
