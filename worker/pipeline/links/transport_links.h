// Links between stages in different processes, over any transport: one connection for each pair of
// stages that exchange messages, one-sided writes into slots of the receiver, doorbells both ways
// (link_layout.h says what lies where). Messages are made in memory that the transport knows and
// used where they arrived, without a copy in between.
//
// The owner of a worker's job makes links for its stage and connects them to each neighbour
// (plan::Neighbours) before the first step: of each pair one side calls Offer, the other Accept
// with the result, and the first Complete with the answer; the owner carries the bytes. Memory is
// allocated then, for the longest messages to come: on the host, or on both sides' devices
// (possibly the same one), between which the transport then copies. When a connection breaks, a
// peer closes or says what it should not, the links close, naming the peer; the owner makes new
// ones.
//
// A thread of the links polls the connections and posts to them. The compute thread could do so
// between its actions, but an action takes milliseconds: meanwhile a neighbour would wait for a
// message whose receive it has posted, and where posting copies (shm) compute would pay for it.
//
// Threads: Offer, Accept and Complete may be called from several, for different peers, before the
// first step; otherwise as in StageLinks. The links must not outlive their transport. What peers
// write is not trusted: doorbells and headers are checked against what is expected before anything
// follows from them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/threads/steady_condition.h"
#include "core/transport/transport.h"
#include "worker/backend/backend.h"
#include "worker/pipeline/links/link_layout.h"
#include "worker/pipeline/links/link_queues.h"
#include "worker/pipeline/links/link_regions.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

struct TransportLinksOptions {
  int stage = 0;
  transport::Transport* transport = nullptr;
  // For each neighbour: room for the messages that it sends, and for those that go to it. LayOut
  // says how much a schedule's queues take with messages of a length.
  LinkCapacity slots;
  LinkCapacity buffers;
  // As in LinkRegions::Options. With a device, messages are made and used by it; call Send and
  // Consumed only once it has done so.
  Device* device = nullptr;
  LentMemory* lent = nullptr;
  Memory* host = nullptr;
  absl::Duration handshake_timeout = absl::Seconds(10);
  // Fills slots on the host whose message has been used with NaN.
  bool poison = false;
};

class TransportLinks final : public StageLinks {
 public:
  static absl::StatusOr<std::unique_ptr<TransportLinks>> Create(
      const TransportLinksOptions& options);
  // Closes the connections and waits until the transport has released the memory.
  ~TransportLinks() override;

  absl::StatusOr<std::string> Offer(int peer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> Accept(int peer, const std::string& offer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Complete(int peer, const std::string& answer) ABSL_LOCKS_EXCLUDED(mutex_);

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
  bool OnDevice(int /*peer*/) const override { return options_.device != nullptr; }
  void Close(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Peer {
    Peer(int stage, LinkRegions regions) : stage(stage), regions(std::move(regions)) {}

    const int stage;
    const LinkRegions regions;  // must outlive the connection
    std::unique_ptr<transport::Connector> connector;
    std::unique_ptr<transport::Connection> connection;
    bool greets = false;  // sends a first doorbell: it is the connecting side
    bool gone = false;    // kClosed has come
    // [0] of activations, [1] of gradients.
    std::array<OutgoingQueue, 2> outgoing = {OutgoingQueue(false), OutgoingQueue(true)};
    std::array<IncomingQueue, 2> incoming = {IncomingQueue(false), IncomingQueue(true)};

    OutgoingQueue& Outgoing(bool gradients) { return outgoing[gradients ? 1 : 0]; }
    IncomingQueue& Incoming(bool gradients) { return incoming[gradients ? 1 : 0]; }
  };
  // A write that may be posted, and to whom it matters.
  struct Posting;

  TransportLinks(const TransportLinksOptions& options,
                 std::unique_ptr<transport::EventQueue> queue);
  absl::StatusOr<std::unique_ptr<Peer>> NewPeer(int stage) const;
  transport::ConnectionOptions OptionsFor(const Peer& peer) const;
  absl::Status Adopt(std::unique_ptr<Peer> adopted) ABSL_LOCKS_EXCLUDED(mutex_);
  // The peer in the current step; an error once closed.
  absl::StatusOr<Peer*> Find(const StageMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RunThread() ABSL_LOCKS_EXCLUDED(mutex_);
  void Handle(const transport::Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::Status Named(const Peer& peer, const absl::Status& status);
  absl::Status Take(Peer& peer, const transport::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether anything was posted; `again`: retry soon what could not be posted.
  bool PostTo(Peer& peer, bool& again) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Posting> NextPosting(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails all calls from now on; the first reason counts.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const TransportLinksOptions options_;
  const std::unique_ptr<transport::EventQueue> queue_;

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  // by stage; none is ever removed
  std::map<int, std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<Peer>> offered_ ABSL_GUARDED_BY(mutex_);
  std::vector<transport::Event> early_ ABSL_GUARDED_BY(mutex_);  // of connections not in peers_
  LinkStep step_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace shoal::worker
