// One client's data connection at the server: the slots it may push into, and the acknowledgements
// owed to it.
//
// Threads: TakePush may run for different slots concurrently; all else is thread-safe. The object's
// end frees slots and staging memory, so a lost client costs nothing.
//
// Slots hold what the peer wrote, hostile until checked: a header is copied once and its hash
// compared before any field is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/data_layout.h"
#include "core/transport/transport.h"
#include "proto/server.pb.h"
#include "server/service/server_metrics.h"
#include "server/service/taken_push.h"
#include "server/store/job_store.h"

namespace shoal::server {

// Judges a push with a whole header, and applies it.
using PushHandler = std::function<PushVerdict(const ClientIdentity&, const transport::PushHeader&,
                                              const PushPayload& payload)>;

class ClientConnection {
 public:
  struct Options {
    ClientIdentity client;
    std::string transport;
    int64_t slots = 0;  // 0: read-only
    int64_t slot_bytes = 0;
    // Whether a push counts without its doorbell: its payload is in place when its header is.
    bool writes_in_order = false;
  };
  // Exposed to the peer: headers and payloads of slots, in one region or in two of the same layout
  // (core/transport/data_layout.h).
  struct Slots {
    std::shared_ptr<transport::Region> headers;
    std::shared_ptr<transport::Region> payloads;
    PayloadMemory place = PayloadMemory::kHost;  // of payloads
  };
  // `staging` is local memory of the same transport, one acknowledgement for each slot. All is null
  // for read-only clients.
  ClientConnection(const Options& options, std::unique_ptr<transport::Connection> connection,
                   Slots slots, std::shared_ptr<transport::Region> staging, ServerMetrics* metrics);

  uint64_t id() const { return id_; }
  const ClientIdentity& client() const { return options_.client; }
  const std::string& transport() const { return options_.transport; }
  int64_t slots() const { return options_.slots; }

  // True if the slot was not waiting for TakePush and is now: call it once for each true.
  bool MarkWaiting(int64_t slot);
  // Hands the slot's push to `handler` and acknowledges it. Answers a push again that was answered
  // already. Closes the connection of one whose payload was damaged: the client sends it again.
  void TakePush(int64_t slot, const PushHandler& handler);

  // Rings the client with that value; of several not posted yet, sends only the newest.
  void Ring(uint32_t immediate);

  // Call when an acknowledgement's or a ring's write is done.
  void OnWriteDone(uint64_t operation);
  // Called on a timer: posts acknowledgements that found the queue full. Returns the slots whose
  // push was already there at the last call, without a doorbell; none unless writes come in order.
  // Closes the connection where a slot that was rung for holds no whole header, and held the same
  // at the last call: no write is under way that makes it whole. The client sends it again, too.
  std::vector<int64_t> LookOver();
  void Close();

 private:
  struct Slot {
    std::atomic<bool> waiting{false};
    // Guarded by mutex_ from here on.
    transport::PushAcknowledgement answer{};  // push_id 0: none yet
    bool answer_owed = false;                 // could not be posted yet
    bool write_under_way = false;
    bool being_taken = false;
    uint64_t seen_push = 0;  // by LookOver
    // What it held instead of a whole header when it was rung for; whether LookOver saw that.
    std::optional<transport::PushHeader> broken;
    bool broken_seen = false;
  };

  transport::PushHeader CopyHeader(int64_t slot) const;
  void Answer(int64_t slot, const transport::PushAcknowledgement& answer);
  void Post(int64_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostRing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDamaged(Slot& slot, const transport::PushHeader& now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::unique_ptr<transport::Connection> connection_;
  const uint64_t id_;
  const Slots memory_;
  const std::shared_ptr<transport::Region> staging_;
  ServerMetrics* const metrics_;
  Metrics::Counter& received_bytes_;

  absl::Mutex mutex_;  // posting, and the slots' answers
  std::vector<Slot> slots_;
  uint32_t ring_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ring_owed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ring_under_way_ ABSL_GUARDED_BY(mutex_) = false;
};

// Where a client finds the partitions of a server's stores, those that are here before those that
// are to come: `regions` are those that it is granted, its extents.
void AddLocations(std::initializer_list<const JobStore*> stores, const JobStore::Regions& regions,
                  proto::ConnectReply& reply);

}  // namespace shoal::server
