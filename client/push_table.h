// Decides what to push next and judges acknowledgements. client/session.h copies and posts.
// Takes no locks: its owner's mutex guards all of it.
//
// Has a buffer (header and payload of one partition, registered) for each slot granted by a server,
// so credits bound what is in flight. Returns a gradient when its last partition is copied to a
// buffer. After a reconnect sends unacknowledged partitions again, with the same key and a new push
// id: the server counts them once.
//
// In place, a buffer is only a header, and the payload is sent from the gradient. Returns the
// gradient when its last partition is acknowledged, or, if posted in an earlier attempt, also when
// its connection is gone.
//
// States of a buffer: free -> filling -> ready -> posted -> free; posted -> ready on reconnect;
// without filling in place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/options.h"
#include "client/registered_memory.h"
#include "client/server_connection.h"
#include "client/unit_layout.h"
#include "core/model/contribution.h"
#include "core/transport/data_layout.h"
#include "core/transport/transport.h"

namespace shoal::client {

class PushTable {
 public:
  struct Options {
    uint64_t incarnation = 0;
    DType gradient_type = DType::kF32;
    bool in_place = false;  // of gradient_type, in memory registered with the transports
    int max_gradients = 8;  // not yet returned
  };

  PushTable(const Options& options, const Layout* layout);

  // Allocates a server's buffers, or adapts them to a new grant (their number never grows).
  absl::Status Grant(int server, const DataConnection& connection,
                     std::span<transport::Transport* const> transports);

  // Starts an attempt: resets counts and drops waiting gradients (TakeReturn returns them). Frees
  // posted buffers when their slots are acknowledged.
  void Begin(int64_t step, int64_t attempt);
  // `gradient`: the unit's elements, fp32, or in place gradient_type. False: max_gradients are
  // waiting.
  bool Enqueue(int unit, const void* gradient, const plan::Contribution& contribution,
               GradientReturn* done);
  // Drops the partitions of `gradient` not yet in buffers. TakeReturn returns it once copies in
  // flight end.
  void Withdraw(const void* gradient);

  // --- for the server's I/O thread ---
  struct Filling {
    int buffer = 0;
    std::span<const float> from;
    std::byte* payload = nullptr;
  };
  // Takes a waiting partition and a free buffer to copy it to.
  std::optional<Filling> NextToFill(int server);
  // `payload_hash`: as in PushHeader.
  void Filled(int server, int buffer, uint64_t payload_hash);
  struct Return {
    GradientReturn* done = nullptr;
    int unit = 0;
    const void* gradient = nullptr;
  };
  // Takes a gradient to return to its owner.
  std::optional<Return> TakeReturn();

  // Puts the next buffer into a free slot: writes its payload, then its header, which rings.
  struct Posting {
    int buffer = 0;
    int64_t bytes = 0;  // of the payload
    std::array<transport::WriteOperation, 2> writes;
  };
  std::optional<Posting> NextToPost(int server, const DataConnection& connection, absl::Time now);
  void Unpost(int server, int buffer);

  struct Outcome {
    bool completed = false;  // an acknowledgement arrived: wake waiters
    bool duplicate = false;  // the server had applied it before
    absl::Status refused;    // why, if of the current attempt; otherwise OK
    absl::Duration took;     // since it was posted
  };
  // Takes the acknowledgement of a slot that rang; ignores unexpected ones.
  Outcome OnAcknowledgement(int server, uint32_t slot, const DataConnection& connection,
                            absl::Time now);
  // Takes acknowledgements that two consecutive scans saw: one may see it half written.
  std::vector<Outcome> Scan(int server, const DataConnection& connection, absl::Time now);
  // Makes buffers posted on a lost connection ready to be sent again; returns how many.
  int Requeue(int server);

  // --- for waiters ---
  bool all_filled() const { return filling_ == 0; }
  bool quiet() const;                      // nothing waits, and no slot is in use
  bool waits(const void* gradient) const;  // not yet returned
  int64_t outstanding(int server) const;   // of this attempt, including waiting ones
  int64_t outstanding() const;
  int64_t acknowledged(int server) const { return at(server).acknowledged; }
  int64_t in_flight(int server) const;  // slots in use
  int64_t bytes() const;                // of all buffers
  // Whether all of the pack's pushes so far are acknowledged.
  bool acknowledged_pack(int64_t pack) const;
  // The oldest unacknowledged push, for messages: "block.3 (partition 7, key 2) to server-1".
  std::string Oldest() const;

 private:
  struct PushBuffer {
    enum class State { kFree, kFilling, kReady, kPosted };
    State state = State::kFree;
    std::byte* memory = nullptr;  // a PushHeader, then (not in place) the payload
    int partition = 0;
    int gradient = -1;  // index into gradients_: the source of the payload
    plan::Contribution contribution;
    int64_t number = 0;  // by which pushes leave in the order in which they came
    int64_t step = 0;
    int64_t attempt = 0;
    uint64_t attempt_serial = 0;
    uint64_t push_id = 0;
    uint64_t payload_hash = 0;
    int slot = -1;
    absl::Time posted;
    bool seen = false;  // its acknowledgement, by a scan
  };
  struct Pending {
    int gradient = 0;
    int partition = 0;
  };
  struct Server {
    std::vector<PushBuffer> buffers;
    std::vector<int> slot_owner;   // buffer, or -1
    std::vector<Pending> pending;  // starts at `first`: a queue without allocations in steady state
    size_t first = 0;
    int64_t acknowledged = 0;
    std::unique_ptr<RegisteredMemory> memory;
    int64_t buffer_bytes = 0;
  };
  struct Gradient {
    bool active = false;
    bool returned = true;
    int unit = 0;
    int remaining = 0;  // partitions that still need its memory
    int reading = 0;    // of those, in a buffer: being filled, or in place
    const std::byte* data = nullptr;
    plan::Contribution contribution;
    GradientReturn* done = nullptr;
  };
  struct Pack {
    int64_t number = 0;
    int64_t outstanding = 0;  // pushes of partitions
  };

  Server& at(int server) { return servers_[static_cast<size_t>(server)]; }
  const Server& at(int server) const { return servers_[static_cast<size_t>(server)]; }
  Outcome Acknowledge(Server& server, PushBuffer& buffer,
                      const transport::PushAcknowledgement& answer, absl::Time now);
  Pack& PackOf(int64_t number);
  void Finished(int gradient);
  void GiveUp(int gradient);
  static bool waiting(const Server& server) { return server.first < server.pending.size(); }
  static Pending TakePending(Server& server);
  // Assigns the next waiting partition to a free buffer; null if either is missing.
  PushBuffer* TakeBuffer(Server& server, PushBuffer::State state);
  void LeaveSlot(Server& server, PushBuffer& buffer);
  void Free(Server& server, PushBuffer& buffer);
  // Call when a buffer no longer needs the gradient's memory.
  void DoneWith(int gradient);

  const Options options_;
  const Layout* const layout_;
  std::vector<Server> servers_;
  std::vector<Gradient> gradients_;
  std::vector<Pack> packs_;   // of this attempt
  std::vector<int> returns_;  // gradients to return
  int64_t next_number_ = 1;
  uint64_t attempt_serial_ = 0;
  uint64_t next_push_id_ = 1;
  int filling_ = 0;
  int64_t step_ = 0;
  int64_t attempt_ = 0;
};

}  // namespace shoal::client
