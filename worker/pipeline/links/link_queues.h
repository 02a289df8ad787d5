// The two ends of a queue of messages over a connection, as state machines: what may be posted
// next, and what a doorbell or a completion means. No threads, locks or I/O; transport_links.cc
// adds them.
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
#include "worker/pipeline/links/link_layout.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

// What the messages of a step have in common.
struct LinkStep {
  int64_t step = 0;
  int64_t attempt = 0;
  std::vector<int64_t> bytes;  // of a message, by microbatch
};

// Where this end's pieces of both queues lie, and their headers.
struct BufferMemory {
  std::byte* pieces = nullptr;
  std::byte* headers = nullptr;  // null: each before its message

  std::byte* MessageOf(const BufferLayout& layout, int64_t piece) const {
    return pieces + layout.OffsetOf(piece) + kStageMessageHeaderBytes;
  }
  std::byte* HeaderOf(const BufferLayout& layout, int64_t piece) const {
    return headers == nullptr ? pieces + layout.OffsetOf(piece)
                              : headers + layout.HeaderOffsetOf(piece);
  }
};

// The sender's end.
class OutgoingQueue {
 public:
  explicit OutgoingQueue(bool gradients) : gradients_(gradients) {}

  // The step must outlive it. Keeps receives that the peer has already posted for this step.
  void BeginStep(const LinkStep& step, const BufferLayout& slots, const BufferLayout& buffers,
                 const BufferMemory& memory);

  // Returns nothing while all buffers are in use.
  std::optional<std::byte*> Reserve(const StageMessage& message);
  absl::Status Send(const StageMessage& message);
  // Call when the peer has posted a receive.
  absl::Status OnReceive(uint32_t number, uint32_t slot);

  struct Part {
    std::span<const std::byte> from;
    int64_t offset = 0;  // in the peer's region
  };
  struct Write {
    size_t buffer = 0;
    Part message;  // into the peer's slots
    Part header;   // into its headers, if they lie separately; else part of the message
    uint32_t immediate = 0;
  };
  // Returns the next message that has a receive; the same one until OnPosted.
  absl::StatusOr<std::optional<Write>> NextWrite();
  void OnPosted();
  // Call when a part of it has been written.
  void OnWritten(size_t buffer);

  int64_t under_way() const { return static_cast<int64_t>(buffers_.size() - free_.size()); }

 private:
  struct Buffer {
    int64_t bytes = 0;  // of the message
    int unwritten = 0;  // parts
  };

  const bool gradients_;
  const LinkStep* step_ = nullptr;
  BufferLayout slots_;
  BufferLayout layout_;
  BufferMemory memory_;
  std::vector<size_t> free_;
  std::vector<Buffer> buffers_;
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

  void BeginStep(const LinkStep& step, const BufferLayout& slots, const BufferMemory& memory);

  absl::Status Post(const StageMessage& message);
  // Returns the doorbell that tells the peer; the same one until OnPosted.
  std::optional<uint32_t> NextDoorbell() const;
  void OnPosted() { untold_.pop_front(); }
  // Call when a message is in its slot. Returns what is wrong with it, if anything.
  absl::Status OnMessage(uint32_t number, uint32_t slot);
  // Returns null while it has not arrived.
  std::byte* Find(const StageMessage& message) const;
  // Returns its slot, which is free again.
  absl::StatusOr<std::span<std::byte>> Consumed(const StageMessage& message);

 private:
  struct Posted {
    StageMessage message;
    uint32_t slot = 0;
  };
  const bool gradients_;
  const LinkStep* step_ = nullptr;
  BufferLayout layout_;
  BufferMemory memory_;
  std::vector<uint32_t> free_;
  std::deque<Posted> posted_;    // in order, not arrived
  std::deque<uint32_t> untold_;  // immediates
  std::map<StageMessage, uint32_t> arrived_;
  uint32_t next_receive_ = 0;
  uint32_t next_message_ = 0;
};

}  // namespace shoal::worker
