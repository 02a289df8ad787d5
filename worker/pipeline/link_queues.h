// The two ends of a queue of messages over a connection, as state machines: what may be posted
// next, and what a doorbell or a completion means. Without threads, locks and I/O, which
// transport_links.cc adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/pipeline/link_layout.h"
#include "worker/pipeline/stage_links.h"

namespace shoal::worker {

// What the messages of a step have in common.
struct LinkStep {
  int64_t step = 0;
  int64_t attempt = 0;
  std::vector<int64_t> bytes;  // of a message, by microbatch
};

// The sender's end.
class OutgoingQueue {
 public:
  explicit OutgoingQueue(bool gradients) : gradients_(gradients) {}

  // `buffers` is the memory of as many buffers as the layout has; the step must outlive it.
  // Receives that the peer has posted for this step already are kept.
  void BeginStep(const LinkStep& step, const PieceLayout& slots, const PieceLayout& buffers,
                 std::byte* memory);

  // Nothing while all buffers are in use.
  std::optional<std::byte*> MakeRoom(const StageMessage& message);
  absl::Status Send(const StageMessage& message);
  // The peer has posted a receive.
  absl::Status OnReceive(uint32_t number, uint32_t slot);

  struct Write {
    size_t buffer = 0;
    std::span<const std::byte> from;
    int64_t offset = 0;  // in the peer's slots
    uint32_t immediate = 0;
  };
  // The next message that has a receive; stays the next until OnPosted.
  absl::StatusOr<std::optional<Write>> NextWrite();
  void OnPosted();
  void OnWritten(size_t buffer);

  int64_t under_way() const { return static_cast<int64_t>(buffers_.size() - free_.size()); }

 private:
  std::byte* PlaceOf(size_t buffer) const {
    return memory_ + layout_.stride * static_cast<int64_t>(buffer);
  }

  const bool gradients_;
  const LinkStep* step_ = nullptr;
  PieceLayout slots_;
  PieceLayout layout_;
  std::byte* memory_ = nullptr;
  std::vector<size_t> free_;
  std::vector<int64_t> buffers_;  // bytes to write of each, header included
  std::map<StageMessage, size_t> made_;
  std::deque<size_t> ready_;       // sent, in order
  std::deque<uint32_t> receives_;  // slots, in order
  uint32_t next_message_ = 0;
  uint32_t next_receive_ = 0;
};

// The receiver's end.
class IncomingQueue {
 public:
  explicit IncomingQueue(bool gradients) : gradients_(gradients) {}

  void BeginStep(const LinkStep& step, const PieceLayout& slots, std::byte* memory);

  absl::Status Post(const StageMessage& message);
  // The doorbell that tells the peer; stays the next until OnPosted.
  std::optional<uint32_t> NextDoorbell() const;
  void OnPosted() { untold_.pop_front(); }
  // A message is in its slot. What is wrong with it, where something is.
  absl::Status OnMessage(uint32_t number, uint32_t slot);
  // Null while it has not arrived.
  std::byte* Find(const StageMessage& message) const;
  // Its memory, which is not used any more.
  absl::StatusOr<std::span<std::byte>> Consumed(const StageMessage& message);

 private:
  struct Posted {
    StageMessage message;
    uint32_t slot = 0;
  };
  std::byte* PlaceOf(uint32_t slot) const {
    return memory_ + layout_.stride * static_cast<int64_t>(slot);
  }

  const bool gradients_;
  const LinkStep* step_ = nullptr;
  PieceLayout layout_;
  std::byte* memory_ = nullptr;
  std::vector<uint32_t> free_;
  std::deque<Posted> posted_;    // in order, not arrived
  std::deque<uint32_t> untold_;  // immediates
  std::map<StageMessage, uint32_t> arrived_;
  uint32_t next_receive_ = 0;
  uint32_t next_message_ = 0;
};

}  // namespace shoal::worker
