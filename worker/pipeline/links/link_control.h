// What two stages tell each other about messages that go from device to device
// (communicator_links.h): short messages over links of the host, which match, name, check and await
// them as they do activations and gradients.
//
// The messages of a step with a neighbour go through one queue in each direction and are numbered
// from 1, by which the links know them; each stage sends one for every message between the two.
// Before them, as number 0, the lower stage may pass on the ids of new communicators. Never more
// control messages are in flight than messages have places at the two ends, so there is always
// room.
//
// Threads: one at a time says, one at a time hears. The links must outlive it. The hearing thread
// waits as long as `goes_on`, asked every few milliseconds, is OK. Failure: what `goes_on` returns,
// or the links' failure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/schedule/schedule_queues.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

// About a message, the same at both ends. The control message's meaning depends on who says it.
struct ControlMessage {
  int32_t from = 0;      // stage
  int32_t gradient = 0;  // as in StageMessage
  int32_t chunk = 0;
  int32_t microbatch = 0;

  bool operator==(const ControlMessage&) const = default;
};

// Ids of communicators, by direction: from the lower stage, and to it.
using LinkIds = std::array<std::string, 2>;
// Size of each, as in NCCL.
inline constexpr size_t kLinkIdBytes = 128;
// The longest of control messages and ids.
inline constexpr int64_t kLongestControlBytes = 2 * kLinkIdBytes;

// Returns the queues of control messages about the messages of `queues`, for links that carry
// nothing else.
std::vector<plan::MessageQueue> ControlQueues(std::span<const plan::MessageQueue> queues);
// Returns their StepMessages::bytes, by number.
std::vector<int64_t> ControlBytes(std::span<const plan::MessageQueue> control_queues);

class LinkControl {
 public:
  LinkControl(int stage, int peer) : stage_(stage), peer_(peer) {}

  bool lower() const { return stage_ < peer_; }  // whether this stage is the lower one

  // Call once `links` have begun a step with these queues. Ids go first, or not at all.
  absl::Status BeginStep(StageLinks& links, std::span<const plan::MessageQueue> control_queues,
                         bool with_ids);
  int messages() const { return messages_; }  // of the step; as many are heard

  absl::Status SayIds(const LinkIds& ids);
  using GoesOn = std::function<absl::Status()>;
  absl::StatusOr<LinkIds> HearIds(const GoesOn& goes_on);
  absl::Status Say(const ControlMessage& control);
  // Waits for the next control message.
  absl::StatusOr<ControlMessage> Hear(const GoesOn& goes_on);

 private:
  StageMessage Numbered(int number) const { return {.peer = peer_, .microbatch = number}; }
  absl::Status SayBytes(int number, const void* bytes, size_t count);
  // Copies what is said with that number to `bytes`; posts the next receive in its place.
  absl::Status HearBytes(int number, void* bytes, size_t count, const GoesOn& goes_on);

  const int stage_;
  const int peer_;
  StageLinks* links_ = nullptr;
  int messages_ = 0;
  int posted_ = 0;  // the last number
  int said_ = 0;
  int heard_ = 0;
};

}  // namespace shoal::worker
