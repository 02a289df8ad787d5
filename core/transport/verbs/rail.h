// One rail of a connection: a queue pair on one device and port, its queues, and the windows into
// this side's memory that the peer was given. Not thread-safe: the connection's lock guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/transport/transport.h"
#include "core/transport/verbs/memory.h"
#include "core/transport/verbs/queue_pair.h"
#include "core/transport/verbs/receive_queue.h"
#include "core/transport/verbs/send_queue.h"
#include "core/transport/verbs/wire.h"

namespace shoal::transport {

// A device's port as the transport uses it.
struct LocalRail {
  Rail rail;
  size_t device = 0;  // index into the transport's devices
};

class ConnectionRail {
 public:
  struct Options {
    LocalRail local;
    std::shared_ptr<VerbsDevice> device;
    std::shared_ptr<CompletionChannel> channel;
    std::shared_ptr<QueuePairQuarantine> quarantine;
    QueueDepths depths;
    VerbsOptions verbs;
    bool peers_write = false;  // something writable is exposed
  };
  // Makes a rail whose queue pair has nothing posted and knows no peer.
  static absl::StatusOr<std::unique_ptr<ConnectionRail>> Create(const Options& options);
  ~ConnectionRail();

  // This end as the peer must know it, except the GID.
  const QueuePairEnd& self() const { return self_; }
  const LocalRail& local() const { return options_.local; }
  // Posts the receives, only a few on a rail without doorbells, and connects to the peer's queue
  // pair.
  absl::Status Connect(const GidDescription& gid, const QueuePairEnd& peer, bool rings);
  // Opens windows if the device has them (adding work to the send queue) and returns the keys by
  // which the peer reaches the regions.
  absl::StatusOr<RemoteMemory> Expose(std::span<const std::shared_ptr<Region>> regions);

  // One message of each kind may be in flight.
  enum class Slot { kGreeting, kCredit, kGoodbye };
  // Adds the message to the send queue. FailedPrecondition if the slot is taken.
  absl::Status Send(Slot slot, const std::string& message);
  void SlotIsFree(const Work& work);

  // Asks for an event at the next completion, unless already asked.
  absl::Status Arm();
  void Disarm() { armed_ = false; }

  QueuePair& pair() { return *pair_; }
  SendQueue& sends() { return *sends_; }
  ReceiveQueue& receives() { return *receives_; }

  RemoteMemory told;    // how the peer reaches this side
  RemoteMemory remote;  // once the peer has told
  bool ready = false;   // the peer has told
  bool heard = true;    // of anything, since the last tick
  int silent_ticks = 0;

 private:
  explicit ConnectionRail(const Options& options) : options_(options) {}
  std::byte* Address(Slot slot);

  const Options options_;
  QueuePairEnd self_;
  bool armed_ = false;
  std::vector<ibv_mw*> windows_;
  std::vector<std::byte> messages_;
  std::array<bool, 3> slot_taken_{};
  ibv_mr* messages_mr_ = nullptr;
  std::unique_ptr<QueuePair> pair_;
  std::unique_ptr<SendQueue> sends_;
  std::unique_ptr<ReceiveQueue> receives_;
};

}  // namespace shoal::transport
