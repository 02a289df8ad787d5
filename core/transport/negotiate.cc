#include "core/transport/negotiate.h"

#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

absl::StatusOr<std::vector<NamedOffer>> MakeOffers(const ConnectingSide& side,
                                                   const std::vector<bool>& left_out) {
  std::vector<NamedOffer> offers;
  absl::Status last = Unavailable("no transport is left to offer to {}", side.peer);
  for (size_t i = 0; i < side.transports.size(); ++i) {
    if (left_out[i]) {
      continue;
    }
    auto offer = side.offer(i);
    if (!offer.ok()) {
      LogWarning("{} cannot be offered to {}: {}", side.transports[i], side.peer,
                 Message(offer.status()));
      last = offer.status();
      continue;
    }
    offers.push_back({side.transports[i], *std::move(offer)});
  }
  if (offers.empty()) {
    return last;
  }
  return offers;
}

}  // namespace

std::vector<std::string> NamesOf(std::span<Transport* const> transports) {
  std::vector<std::string> names;
  for (const Transport* transport : transports) {
    names.emplace_back(transport->name());
  }
  return names;
}

absl::StatusOr<TakenOffer> TakeOffer(
    std::span<const std::string> transports, std::span<const NamedOffer> offers,
    const std::string& peer, std::vector<std::string> reasons,
    const std::function<absl::StatusOr<std::string>(size_t index, const std::string& offer)>&
        accept) {
  for (size_t i = 0; i < transports.size(); ++i) {
    const auto offer = std::ranges::find(offers, transports[i], &NamedOffer::transport);
    if (offer == offers.end()) {
      reasons.push_back(fmt::format("{}: not offered by {}", transports[i], peer));
      continue;
    }
    auto answer = accept(i, offer->offer);
    if (answer.ok()) {
      return TakenOffer{transports[i], *std::move(answer),
                        fmt::format("{}", fmt::join(reasons, "; "))};
    }
    reasons.push_back(fmt::format("{}: {}", transports[i], Message(answer.status())));
  }
  return Unavailable("no transport connects {}: {}", peer, fmt::join(reasons, "; "));
}

absl::StatusOr<Negotiated> Negotiate(const ConnectingSide& side) {
  Negotiated result;
  std::vector<bool> left_out = side.left_out;
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<NamedOffer> offers, MakeOffers(side, left_out));
    SHOAL_ASSIGN_OR_RETURN(const TakenOffer taken, side.ask(offers));
    if (std::ranges::find(offers, taken.transport, &NamedOffer::transport) == offers.end()) {
      return Internal("{} answered with transport '{}', which was not offered", side.peer,
                      taken.transport);
    }
    result.transport = static_cast<size_t>(std::ranges::find(side.transports, taken.transport) -
                                           side.transports.begin());
    const absl::Status completed = side.complete(result.transport, taken.answer);
    if (completed.ok()) {
      result.reason = result.reason.empty() ? taken.reason : result.reason;
      return result;
    }
    left_out[result.transport] = true;
    result.not_completed.push_back(result.transport);
    result.reason = fmt::format("{}: {}", taken.transport, Message(completed));
    if (std::ranges::find(left_out, false) == left_out.end()) {
      return completed;  // names the peer
    }
  }
}

}  // namespace shoal::transport
