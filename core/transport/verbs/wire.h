// What the two ends of a verbs connection tell each other: the bodies of offer and answer, which
// travel in the authenticated handshake, and the messages that follow on the queue pairs
// themselves.
//
//   connector                                         acceptor
//     Offer {rails, a queue pair on each}        ->   chooses which rails talk to which
//                                                <-   Answer {pairs, queue pairs, secret}
//     on each rail:
//     Hello {secret, regions with keys}          ->
//                                                <-   Welcome {regions with keys}
//     later, on the first rail, either way: Credit {doorbells polled}, Goodbye
//
// A hash over both binds an answer to its offer, so that one that is damaged, or meant for another
// offer, is detected before anything is sent to the acceptor's queue pairs. Keys and secrets are
// never logged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/handshake.h"
#include "core/transport/verbs/queue_pair.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

// Raised when bodies or messages change meaning.
inline constexpr uint32_t kVerbsVersion = 1;
inline constexpr size_t kMaxRails = 16;

struct OfferedRail {
  RemoteRail rail;
  QueuePairEnd end;  // without a GID: the answer says which one is used
};
struct VerbsOffer {
  std::string nonce;
  int64_t doorbells = 0;  // the most that may wait at the connector
  std::vector<OfferedRail> rails;
};
std::string EncodeOffer(const VerbsOffer& offer);
absl::StatusOr<VerbsOffer> DecodeOffer(std::string_view peer, std::string_view body);

struct AnsweredRail {
  int connector_rail = 0;  // index into the offer's rails
  int connector_gid = 0;   // index into that rail's GIDs
  QueuePairEnd end;        // the acceptor's
};
struct VerbsAnswer {
  int64_t doorbells = 0;
  std::string secret;
  std::vector<AnsweredRail> rails;
};
std::string EncodeAnswer(const VerbsAnswer& answer, const std::string& nonce);
absl::StatusOr<VerbsAnswer> DecodeAnswer(std::string_view peer, const std::string& nonce,
                                         std::string_view body);

// An exposed region as one rail reaches it.
struct RemoteChunk {
  uint64_t address = 0;
  uint32_t key = 0;
};
struct RemoteMemory {
  std::vector<RemoteRegion> regions;
  struct Chunks {
    int64_t bytes = 0;  // of each except the last
    std::vector<RemoteChunk> chunks;
  };
  std::vector<Chunks> chunks;  // by region
};

enum class VerbsMessage : uint32_t { kHello = 1, kWelcome = 2, kCredit = 3, kGoodbye = 4 };

std::string EncodeHello(const std::string& secret, const RemoteMemory& memory);
std::string EncodeWelcome(const RemoteMemory& memory);
std::string EncodeCredit(uint64_t polled);
std::string EncodeGoodbye();

struct ReceivedMessage {
  VerbsMessage type = VerbsMessage::kGoodbye;
  std::string secret;   // kHello
  RemoteMemory memory;  // kHello, kWelcome
  uint64_t polled = 0;  // kCredit
};
absl::StatusOr<ReceivedMessage> DecodeMessage(std::string_view peer, std::string_view bytes);

}  // namespace shoal::transport
