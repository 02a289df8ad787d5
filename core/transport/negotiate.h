// Which of several transports a connection takes. The connecting side offers all that it has, in
// order of preference, in one request; the accepting side takes the first of its own order that
// connects; where the connecting side cannot complete that one, it asks again without it. Both
// learn why it is not the first, so that falling back is never silent. How requests travel is the
// caller's.
//
// Plain functions: block for as long as what they are given does.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::transport {

struct NamedOffer {
  std::string transport;
  std::string offer;
};

struct TakenOffer {
  std::string transport;
  std::string answer;
  std::string reason;  // why not one before it; empty if it was the first of all
};

// The accepting side, with its transports in order of preference. `accept` makes the connection
// from an offer for transports[index] and returns the answer. `reasons` are why transports of the
// job are not among these. Unavailable with all reasons, naming the peer, where none connects.
absl::StatusOr<TakenOffer> TakeOffer(
    std::span<const std::string> transports, std::span<const NamedOffer> offers,
    const std::string& peer, std::vector<std::string> reasons,
    const std::function<absl::StatusOr<std::string>(size_t index, const std::string& offer)>&
        accept);

struct ConnectingSide {
  std::string peer;                     // for messages
  std::vector<std::string> transports;  // in order of preference
  std::vector<bool> left_out;           // by transport: not to be offered
  // Makes an offer over transports[index]; a later one takes the place of an earlier.
  std::function<absl::StatusOr<std::string>(size_t index)> offer;
  // Sends the offers to the peer, which takes one of them.
  std::function<absl::StatusOr<TakenOffer>(const std::vector<NamedOffer>& offers)> ask;
  // Makes the connection from the answer to the last offer over transports[index].
  std::function<absl::Status(size_t index, const std::string& answer)> complete;
};

struct Negotiated {
  size_t transport = 0;               // index
  std::string reason;                 // why not the first that was offered; empty if it is
  std::vector<size_t> not_completed;  // that the peer took and this side could not complete
};

// The connecting side. An error of `ask` ends it; else one of the last transport that failed.
absl::StatusOr<Negotiated> Negotiate(const ConnectingSide& side);

}  // namespace shoal::transport
