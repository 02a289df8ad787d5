// Links between stages that have a GPU each, over communicators (worker/collectives: NCCL): a
// message goes from the memory where it was made on one GPU to where it is used on the other, and
// the host only says when. docs/pipeline.md ("Messages from GPU to GPU") shows why nothing waits
// forever. The host, never the GPU, waits for messages; neither half of a call is put on a GPU
// before its stage is ready, and the lower stage always begins.
//
// Threads: as in StageLinks; the links' own threads run during a step. Failure: as in StageLinks
// and CommunicatorOptions; any failure ends calls in flight, also on the GPU, and closes the host's
// links.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"
#include "worker/pipeline/links/link_control.h"
#include "worker/pipeline/links/linked_pair.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class CommunicatorLinks final : public AttachedLinks {
 public:
  struct Options {
    int stage = 0;
    Device* device = nullptr;
    Stream* compute = nullptr;  // on which messages are made and used
    Collectives* collectives = nullptr;
    // How long a neighbour may take to make its half of a call, once it is ready, and to connect.
    absl::Duration timeout = absl::Minutes(2);
    // Whether the step goes on, as in CommunicatorOptions; may be empty.
    std::function<absl::Status()> check;
    // Fills places whose message has been used with NaN.
    bool poison = false;
  };
  explicit CommunicatorLinks(Options options);
  ~CommunicatorLinks() override;

  void Attach(StageLinks& host) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abandon(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnect() override ABSL_LOCKS_EXCLUDED(mutex_) { DropPairs(); }

  absl::Status BeginStep(const StepMessages& step) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EndStep(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> Reserve(const StageMessage& message, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Send(const StageMessage& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Post(const StageMessage& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<const std::byte*> Await(const StageMessage& message,
                                         absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Consumed(const StageMessage& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_) { Fail(why); }
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Device memory for a message.
  struct MessageBuffer {
    Buffer memory;
    std::unique_ptr<Event> done;  // what was last enqueued on the device with it; null: nothing
  };
  struct Transfer {
    StageMessage message;
    MessageBuffer buffer;
  };
  // This stage's end of a queue.
  struct End {
    std::deque<MessageBuffer> spare;
    std::map<StageMessage, MessageBuffer> made;  // not sent yet
    std::deque<Transfer> ready;                  // on this side
    // ready on the other side; used at the lower stage
    std::deque<ControlMessage> heard;
    std::map<StageMessage, MessageBuffer> coming;  // also those here already
    std::map<StageMessage, MessageBuffer> in_use;
  };
  struct EndKey {
    int peer = 0;
    bool gradient = false;
    bool outgoing = false;

    auto operator<=>(const EndKey&) const = default;
  };
  // Becomes ready when its event is done.
  struct Pending {
    EndKey key;
    Transfer transfer;
    std::unique_ptr<Event> after;  // null: at once
  };
  absl::Status Begin(const StepMessages& step) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakeBuffers(const StepMessages& step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Connects with these neighbours, in order.
  absl::Status Connect(std::span<const int> peers, StageLinks& host,
                       std::span<const plan::MessageQueue> control) ABSL_LOCKS_EXCLUDED(mutex_);
  void AbortPairs(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropPairs() ABSL_LOCKS_EXCLUDED(mutex_);
  void StopThreads() ABSL_LOCKS_EXCLUDED(mutex_);

  // The threads of a step (communicator_calls.cc).
  void AwaitReady() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MakeReady(Pending pending) ABSL_LOCKS_EXCLUDED(mutex_);
  void HearAll(LinkedPair& pair, int peer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ControlMessage> HearNext(LinkedPair& pair) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakeControl(LinkedPair& pair, int peer, const ControlMessage& control)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // At the lower stage: starts everything for which both sides are ready.
  absl::Status StartMatched(LinkedPair& pair, const EndKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pair.starting) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Start(LinkedPair& pair, const EndKey& key, Transfer transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pair.starting) ABSL_LOCKS_EXCLUDED(mutex_);

  // Called on the compute thread.
  absl::Status AwaitDone(Event& transfer, int peer, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  ControlMessage ControlOf(const EndKey& key, const StageMessage& message) const;
  absl::Status CheckControl(const EndKey& key, const StageMessage& message,
                            const ControlMessage& control) const;
  int64_t BytesOf(const StageMessage& message) const {
    return bytes_[static_cast<size_t>(message.microbatch)];
  }
  absl::StatusOr<End*> Find(const EndKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status check() const { return options_.check ? options_.check() : absl::OkStatus(); }
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  // Changed only between steps, and pairs only under the lock: they may be aborted at any time.
  std::map<int, std::unique_ptr<LinkedPair>> pairs_;  // by neighbour
  std::vector<int64_t> bytes_;                        // of a message, by microbatch
  int64_t message_bytes_ = 0;
  std::vector<std::thread> threads_;  // of the step

  mutable absl::Mutex mutex_;
  StageLinks* host_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<EndKey, End> ends_ ABSL_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  // messages sent or posted, but not yet put on the device
  int unstarted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the step
};

}  // namespace shoal::worker
