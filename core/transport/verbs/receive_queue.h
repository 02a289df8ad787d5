// The receiving side of a queue pair: buffers for messages, reposted as soon as they have been
// read.
//
// Every doorbell and message takes one, whether it carries data or not. Peers never have more in
// flight than are posted (doorbells are counted, see VerbsConnectionState), so "receiver not ready"
// does not happen. Receives are taken in the order posted: the first is as large as a greeting, all
// others as small as the later messages. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/transport/verbs/queue_pair.h"

namespace shoal::transport {

class ReceiveQueue {
 public:
  static constexpr size_t kGreetingBytes = 16384;
  static constexpr size_t kMessageBytes = 64;
  // Marks receives in the ids of completions, as nothing else tells them from sends if one failed.
  static constexpr uint64_t kReceive = uint64_t{1} << 63;

  // Registers its memory; posts nothing yet.
  static absl::StatusOr<std::unique_ptr<ReceiveQueue>> Create(QueuePair* pair, int depth);
  ~ReceiveQueue();

  // Posts all. The queue pair must be initialized.
  absl::Status PostAll();
  // Returns what the receive holds; empty for an impossible id. Ids are those of completions, with
  // kReceive set.
  std::span<const std::byte> Message(uint64_t id, size_t bytes) const;
  // Frees its buffer. Reposts in batches, so up to kSpare may be missing.
  absl::Status Repost(uint64_t id);

  // Receives beyond those that doorbells are counted against: for messages, and for those that
  // await their batch.
  static constexpr int kSpare = 64;

 private:
  ReceiveQueue(QueuePair* pair, int depth)
      : pair_(pair),
        depth_(static_cast<size_t>(depth)),
        memory_(kGreetingBytes + depth_ * kMessageBytes) {}
  absl::Status Post(std::span<const uint64_t> ids);
  std::byte* Address(uint64_t id) const;

  QueuePair* const pair_;
  const size_t depth_;
  mutable std::vector<std::byte> memory_;
  ibv_mr* mr_ = nullptr;
  std::vector<uint64_t> free_;
};

}  // namespace shoal::transport
