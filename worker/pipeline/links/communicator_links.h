// Links between stages that have a GPU each, over communicators (worker/collectives: NCCL): a
// message goes from the memory where it was made on one GPU to where it is used on the other, and
// the host just says when.
//
// Why nothing waits for ever. A send or receive that is put on a GPU runs there until the other
// stage has put the other half on its own; it holds up all that is behind it on its stream and,
// where the driver waits for the whole GPU (to load a kernel's code, to free memory), the threads
// of its process too. So neither half is put on a GPU before its stage is ready for it: a message
// is made, or its place is free, as the host has seen it. When both are, it is always the lower
// stage that begins. The higher stage says that it is ready (link_words.h); the lower one, once it
// is ready itself, puts its half on its GPU and says so; then the higher one puts its own there.
// - What runs on a GPU thus waits for the host of a higher stage at most, and for nothing that this
//   host has yet to compute or to receive. The halves on the highest stage's GPU wait for nobody.
//   So they end, and so do one after the other those on the GPUs below, whatever order the schedule
//   has, in which directions messages go and whoever waits for a whole GPU meanwhile.
// - Each direction between two stages has a communicator and a stream to itself
//   (communicator_pair.h). The lower stage gives its calls their order, and the higher one makes
//   its own in the order of the words that it hears: they always match. No call waits behind one of
//   another direction or neighbour.
// - Nothing that this stage computes or copies waits for a message on the GPU: the host waits until
//   one is there, or gone, before it puts there what needs that. So it does not matter which
//   streams share a queue of the hardware, where who waits holds up whoever is behind.
// - Communicators are made by pairs of stages in the order of their numbers, at both ends, so some
//   pair can always go on.
//
// Attached to links of the host (those of WordQueues, and of messages of kLongestWordBytes), which
// carry the words and tell of neighbours that are lost. Communicators are made in the first step
// and kept; an attempt that is not a step's first has new ones, as it has links.
//
// Messages have places in memory of the device: of each queue as many as the schedule has slots for
// at the receiver, and as it has send buffers for at the sender. They are taken when a step needs
// more than those before it, and kept until a step fails.
//
// Threads: as StageLinks says. During a step there are threads of the links: one waits until
// messages are made and places free, in the order of the calls, and one for each neighbour hears
// its words. Failure: as StageLinks says, and as CommunicatorOptions says; whatever fails ends what
// is under way, on the GPU too, and closes the links of the host.
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
#include "worker/pipeline/links/attached_links.h"
#include "worker/pipeline/links/link_words.h"
#include "worker/pipeline/links/linked_pair.h"

namespace shoal::worker {

class CommunicatorLinks final : public AttachedLinks {
 public:
  struct Options {
    int stage = 0;
    Device* device = nullptr;
    Stream* compute = nullptr;  // on which messages are made and used
    Collectives* collectives = nullptr;
    // For a neighbour to make its half of a call, once it is ready, and to connect.
    absl::Duration timeout = absl::Minutes(2);
    // Whether the step goes on, as CommunicatorOptions; may be empty.
    std::function<absl::Status()> check;
    // Places whose message has been used are filled with NaN.
    bool poison = false;
  };
  explicit CommunicatorLinks(Options options);
  ~CommunicatorLinks() override;

  void Attach(StageLinks& host) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abandon(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnect() override ABSL_LOCKS_EXCLUDED(mutex_) { DropPairs(); }

  absl::Status BeginStep(const StepMessages& step) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EndStep(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> MakeRoom(const StageMessage& message, absl::Duration timeout) override
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
  struct Place {
    Buffer memory;
    std::unique_ptr<Event> done;  // what was last put on the device with it; null: nothing
  };
  struct Transfer {
    StageMessage message;
    Place place;
  };
  // This stage's end of a queue.
  struct End {
    std::deque<Place> spare;
    std::map<StageMessage, Place> made;    // and not sent yet
    std::deque<Transfer> ready;            // on this side
    std::deque<LinkWord> heard;            // ready on the other side, at the lower stage
    std::map<StageMessage, Place> coming;  // or here already
    std::map<StageMessage, Place> in_use;
  };
  struct EndKey {
    int peer = 0;
    bool gradient = false;
    bool outgoing = false;

    auto operator<=>(const EndKey&) const = default;
  };
  // What becomes ready when its event is done.
  struct Pending {
    EndKey key;
    Transfer transfer;
    std::unique_ptr<Event> after;  // null: at once
  };
  absl::Status Begin(const StepMessages& step) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakePlaces(const StepMessages& step) ABSL_LOCKS_EXCLUDED(mutex_);
  // With these neighbours, in order.
  absl::Status Connect(std::span<const int> peers, StageLinks& host,
                       std::span<const plan::MessageQueue> words) ABSL_LOCKS_EXCLUDED(mutex_);
  void AbortPairs(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropPairs() ABSL_LOCKS_EXCLUDED(mutex_);
  void StopThreads() ABSL_LOCKS_EXCLUDED(mutex_);

  // The threads of a step (communicator_calls.cc).
  void AwaitReady() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MakeReady(Pending pending) ABSL_LOCKS_EXCLUDED(mutex_);
  void HearWords(LinkedPair& pair, int peer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<LinkWord> HearWord(LinkedPair& pair) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakeWord(LinkedPair& pair, int peer, const LinkWord& word)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // At the lower stage: all that both sides are ready for.
  absl::Status StartMatched(LinkedPair& pair, const EndKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pair.starting) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Start(LinkedPair& pair, const EndKey& key, Transfer transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pair.starting) ABSL_LOCKS_EXCLUDED(mutex_);

  // On the compute thread.
  absl::Status AwaitDone(Event& transfer, int peer, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  LinkWord WordOf(const EndKey& key, const StageMessage& message) const;
  absl::Status CheckWord(const EndKey& key, const StageMessage& message,
                         const LinkWord& word) const;
  int64_t BytesOf(const StageMessage& message) const {
    return bytes_[static_cast<size_t>(message.microbatch)];
  }
  absl::StatusOr<End*> Find(const EndKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status check() const { return options_.check ? options_.check() : absl::OkStatus(); }
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  // Changed between steps alone, and pairs under the lock: who aborts them may come at any time.
  std::map<int, std::unique_ptr<LinkedPair>> pairs_;  // by neighbour
  std::vector<int64_t> bytes_;                        // of a message, by microbatch
  int64_t place_bytes_ = 0;
  std::vector<std::thread> threads_;  // of the step

  mutable absl::Mutex mutex_;
  StageLinks* host_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<EndKey, End> ends_ ABSL_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  int unstarted_ ABSL_GUARDED_BY(mutex_) = 0;  // messages sent or posted and not put on the device
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the step
};

}  // namespace shoal::worker
