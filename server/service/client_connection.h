// One client's data connection as the server sees it: the slots it may push into, and the
// acknowledgements owed to it.
//
// Threads: TakePush may run for different slots at once, on any thread; the rest is thread-safe.
// Slots and staging memory go with the object, so a client that is gone costs nothing.
//
// All that lies in the slots is written by the peer and hostile until checked: a header is copied
// out once and its hash compared before any field is looked at.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/data_layout.h"
#include "core/transport/transport.h"
#include "server/service/server_metrics.h"
#include "server/service/sparse_log.h"
#include "server/store/partition_state.h"

namespace shoal::server {

struct ClientIdentity {
  uint64_t incarnation = 0;
  std::string name;  // for messages: "worker-1"
};

struct PushVerdict {
  absl::StatusCode code = absl::StatusCode::kOk;
  bool applied_before = false;
};

// What may lie behind a header in its slot.
struct PushPayload {
  std::span<const std::byte> bytes;
  PayloadMemory place = PayloadMemory::kHost;
};

// Decides about a push whose header is whole, and applies it.
using PushHandler = std::function<PushVerdict(const ClientIdentity&, const transport::PushHeader&,
                                              const PushPayload& payload)>;

class ClientConnection {
 public:
  struct Options {
    ClientIdentity client;
    std::string transport;
    int64_t slots = 0;  // 0: read-only
    int64_t slot_bytes = 0;
  };
  // Exposed to the peer: the headers of slots and their payloads, in one region or in two of one
  // layout (core/transport/data_layout.h).
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

  // True if the slot was not waiting to be looked at and is now. Each true is followed by one
  // TakePush.
  bool MarkWaiting(int64_t slot);
  // Looks at the slot, hands a push to `handler` and acknowledges it. A push that was answered
  // already is answered again.
  void TakePush(int64_t slot, const PushHandler& handler);

  // Rings the client with that value; of several that could not be posted yet, the newest goes out.
  void Ring(uint32_t immediate);

  // An acknowledgement's or a ring's write is done.
  void OnWriteDone(uint64_t operation);
  // Called on a timer: posts acknowledgements that found the queue full, and returns the slots that
  // hold a push which was there at the last call already and nobody rang for.
  std::vector<int64_t> LookOver();
  void Close();

 private:
  struct Slot {
    std::atomic<bool> waiting{false};
    // The rest under mutex_.
    transport::PushAcknowledgement answer{};  // push_id 0: none yet
    bool answer_owed = false;                 // could not be posted yet
    bool write_under_way = false;
    bool being_taken = false;
    uint64_t seen_push = 0;  // by LookOver
  };

  transport::PushHeader CopyHeader(int64_t slot) const;
  void Answer(int64_t slot, const transport::PushAcknowledgement& answer);
  void Post(int64_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostRing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::unique_ptr<transport::Connection> connection_;
  const uint64_t id_;
  const Slots memory_;
  const std::shared_ptr<transport::Region> staging_;
  ServerMetrics* const metrics_;
  Metrics::Counter& received_bytes_;
  SparseLog malformed_;

  absl::Mutex mutex_;  // posting, and the slots' answers
  std::vector<Slot> slots_;
  uint32_t ring_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ring_owed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ring_under_way_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::server
