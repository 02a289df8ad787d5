#include "worker/pipeline/links/link_control.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

// For room, which is always there.
constexpr absl::Duration kRoomTimeout = absl::Seconds(10);
}  // namespace

std::vector<plan::MessageQueue> ControlQueues(std::span<const plan::MessageQueue> queues) {
  struct Pair {
    int messages = 0;
    int places = 1;  // and one for the ids
  };
  std::map<std::pair<int, int>, Pair> pairs;  // by (from, to), both ways alike
  for (const plan::MessageQueue& queue : queues) {
    for (const auto& direction :
         {std::pair(queue.from, queue.to), std::pair(queue.to, queue.from)}) {
      pairs[direction].messages += queue.messages;
      pairs[direction].places += queue.slots + queue.send_buffers;
    }
  }
  std::vector<plan::MessageQueue> control;
  for (const auto& [direction, pair] : pairs) {
    const int places = std::min(pair.places, pair.messages + 1);
    control.push_back({.from = direction.first,
                       .to = direction.second,
                       .messages = pair.messages + 1,
                       .slots = places,
                       .send_buffers = places});
  }
  return control;
}

std::vector<int64_t> ControlBytes(std::span<const plan::MessageQueue> control_queues) {
  int numbers = 1;
  for (const plan::MessageQueue& queue : control_queues) {
    numbers = std::max(numbers, queue.messages);
  }
  std::vector<int64_t> bytes(static_cast<size_t>(numbers), sizeof(ControlMessage));
  bytes[0] = kLongestControlBytes;
  return bytes;
}

absl::Status LinkControl::BeginStep(StageLinks& links,
                                    std::span<const plan::MessageQueue> control_queues,
                                    bool with_ids) {
  const auto incoming = std::ranges::find_if(control_queues, [&](const plan::MessageQueue& queue) {
    return queue.from == peer_ && queue.to == stage_;
  });
  if (incoming == control_queues.end()) {
    return Internal("stage {} has no words with stage {}", stage_, peer_);
  }
  links_ = &links;
  messages_ = incoming->messages - 1;
  said_ = heard_ = 0;
  const int first = with_ids && !lower() ? 0 : 1;
  posted_ = first - 1;
  while (posted_ < std::min(messages_, first + incoming->slots - 1)) {
    SHOAL_RETURN_IF_ERROR(links.Post(Numbered(++posted_)));
  }
  return absl::OkStatus();
}

absl::Status LinkControl::SayBytes(int number, const void* bytes, size_t count) {
  SHOAL_ASSIGN_OR_RETURN(std::byte* const room, links_->Reserve(Numbered(number), kRoomTimeout));
  std::memcpy(room, bytes, count);
  return links_->Send(Numbered(number));
}

absl::Status LinkControl::HearBytes(int number, void* bytes, size_t count, const GoesOn& goes_on) {
  while (true) {
    const absl::StatusOr<const std::byte*> said = links_->Await(Numbered(number), kLookAgain);
    if (said.ok()) {
      std::memcpy(bytes, *said, count);
      SHOAL_RETURN_IF_ERROR(links_->Consumed(Numbered(number)));
      return posted_ < messages_ ? links_->Post(Numbered(++posted_)) : absl::OkStatus();
    }
    if (!absl::IsDeadlineExceeded(said.status())) {
      return said.status();
    }
    SHOAL_RETURN_IF_ERROR(links_->status());  // a timeout of their own may have closed them
    SHOAL_RETURN_IF_ERROR(goes_on());
  }
}

absl::Status LinkControl::SayIds(const LinkIds& ids) {
  std::array<char, kLongestControlBytes> bytes = {};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].size() != kLinkIdBytes) {
      return Internal("a communicator's id of {} B, where words have {}", ids[i].size(),
                      kLinkIdBytes);
    }
    std::memcpy(bytes.data() + i * kLinkIdBytes, ids[i].data(), kLinkIdBytes);
  }
  return SayBytes(0, bytes.data(), bytes.size());
}

absl::StatusOr<LinkIds> LinkControl::HearIds(const GoesOn& goes_on) {
  std::array<char, kLongestControlBytes> bytes = {};
  SHOAL_RETURN_IF_ERROR(HearBytes(0, bytes.data(), bytes.size(), goes_on));
  LinkIds ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i].assign(bytes.data() + i * kLinkIdBytes, kLinkIdBytes);
  }
  return ids;
}

absl::Status LinkControl::Say(const ControlMessage& control) {
  return SayBytes(++said_, &control, sizeof(control));
}

absl::StatusOr<ControlMessage> LinkControl::Hear(const GoesOn& goes_on) {
  ControlMessage control;
  SHOAL_RETURN_IF_ERROR(HearBytes(heard_ + 1, &control, sizeof(control), goes_on));
  ++heard_;
  return control;
}

}  // namespace shoal::worker
