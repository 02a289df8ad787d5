// The sending side of a queue pair: work waits in memory until the queue has room, is posted in
// chains, and ends in the order posted. Not thread-safe: the connection's lock guards it.
//
// Which requests ask for a completion (moderated signalling):
// - the last of every chain, so that everything posted is heard of;
// - one in signal_interval in between;
// - the last of each large operation, so that its event does not wait for later ones.
//
// Requests end in order, so a completion ends all before it; the number in flight never exceeds the
// depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/transport/verbs/queue_pair.h"

namespace shoal::transport {

// A work request to be posted.
struct Work {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kWriteAndRing,  // the doorbell travels with the data
    kRing,          // a send without data: needs no right to write
    kMessage,       // a send of `local`
    kProbe,         // an empty read that checks whether the peer still answers
    kBind,          // opens a window
  };
  static constexpr uint32_t kNoOperation = UINT32_MAX;

  Kind kind = Kind::kProbe;
  bool ends_operation = false;
  bool may_be_inline = true;          // false if the processor cannot read it
  uint32_t operation = kNoOperation;  // the connection's
  uint32_t immediate = 0;             // network byte order is SendQueue's business
  uint32_t length = 0;
  std::byte* local = nullptr;
  uint64_t remote = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint32_t remote_region = 0;  // the region of `remote`, whose address differs on another rail
  int64_t remote_offset = 0;
  ibv_mw* window = nullptr;  // kBind: opened over window_bytes from `local`, within `region`
  ibv_mr* region = nullptr;
  uint64_t window_bytes = 0;
};

class SendQueue {
 public:
  SendQueue(QueuePair* pair, int depth, int signal_interval);

  // Returns the next request, to be filled in before anything else is added.
  Work& Add() {
    Work& work = waiting_.empty() && HasRoom() ? At(posted_ + staged_++) : waiting_.emplace_back();
    work = {};
    return work;
  }
  void Add(const Work& work) { Add() = work; }
  // Posts what fits. After an error some of it may be in flight; end the queue pair then.
  absl::Status Post();
  // Whether something is left to post, with possible room for it.
  bool pending() const { return staged_ > 0 || !waiting_.empty(); }
  bool idle() const { return !pending() && posted_ == completed_; }
  size_t in_flight() const { return posted_ - completed_; }

  // Passes to `ended` all work up to and including the request of a completion, oldest first. False
  // for an id that was never posted or has ended.
  template <typename Ended>
  bool Complete(uint64_t request, const Ended& ended) {
    if (request >= posted_ || request < completed_) {
      return false;
    }
    while (completed_ <= request) {
      ended(At(completed_++));
    }
    return true;
  }
  // Same as above for all requests before `request`, which itself failed; TakeAll returns the rest.
  // Only the first failure tells what succeeded before it: later ones are flushes, and the failed
  // request lies before them. An impossible id changes nothing.
  template <typename Ended>
  void CompleteBefore(uint64_t request, const Ended& ended) {
    while (!failed_ && request < posted_ && completed_ < request) {
      ended(At(completed_++));
    }
    failed_ = true;
  }
  // Passes to `taken` everything posted or waiting, oldest first, and forgets it.
  template <typename Taken>
  void TakeAll(const Taken& taken) {
    posted_ += std::exchange(staged_, 0);
    while (completed_ < posted_) {
      taken(At(completed_++));
    }
    for (const Work& work : waiting_) {
      taken(work);
    }
    waiting_.clear();
  }

 private:
  static constexpr size_t kChain = 32;
  bool HasRoom() const { return in_flight() + staged_ < depth_; }
  Work& At(uint64_t request) { return ring_[request & mask_]; }
  void StageWaiting();
  void Fill(const Work& work, ibv_send_wr& request, ibv_sge& piece) const;
  bool WantsCompletion(const Work& work, bool last);

  QueuePair* const pair_;
  const int signal_interval_;
  const size_t depth_;
  // the ring's size is a power of two, so that finding a place needs no division
  const uint64_t mask_;
  std::vector<Work> ring_;  // request n lies at n & mask_: posted ones, then staged ones
  uint64_t posted_ = 0;     // counts requests; also the id of the next
  uint64_t completed_ = 0;
  uint64_t staged_ = 0;  // will be posted next
  int unsignaled_ = 0;
  bool failed_ = false;
  std::deque<Work> waiting_;  // for room in the ring
};

}  // namespace shoal::transport
