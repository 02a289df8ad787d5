// What a client does with its servers, one turn at a time: its state, guarded by one mutex that is
// never held while bytes are copied or posted. Has no threads: SessionThreads (session_threads.h)
// calls TurnIo for each transport in use and Reconnect, in threads of their own; the simulation in
// one (tests/simulation). Calls of ParameterClient wait as its options say; of limits of zero, not
// at all.
//
// A link is open until a turn of its transport sees it break; then closing until kClosed arrives,
// when all its operations have completed and touch no memory any more; then connecting until
// Reconnect has a new connection; and failed after a bounded number of tries.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/buffer_pool.h"
#include "client/fetch_table.h"
#include "client/parameter_client.h"
#include "client/push_table.h"
#include "client/server_connection.h"
#include "client/transport_policy.h"
#include "client/unit_layout.h"
#include "core/base/random.h"

namespace shoal::client {

// The server that counts arrivals at barriers.
inline constexpr int kBarrierServer = 0;
// The operation id of a barrier's doorbell, whose completion nobody waits for.
inline constexpr uint64_t kBarrierOperation = ~uint64_t{0};

class Session {
 public:
  using View = ParameterClient::View;

  Session(const ClientOptions& options, Layout layout, ServerClient* server_client,
          const std::vector<transport::Transport*>& transports, Clock& clock);
  // No turn may be under way, or follow.
  ~Session();

  // Connects to all servers and allocates the buffers. `use`: from then on there are turns to take
  // of that transport; called once for each that comes to be used, under a lock.
  absl::Status Start(std::function<void(size_t transport)> use);

  // Handles that transport's events, posts operations, copies. False: there was nothing to do, and
  // by *next there may be. Only one thread at a time takes turns of a transport.
  bool TurnIo(size_t transport, absl::Time* next) ABSL_LOCKS_EXCLUDED(mutex_);
  transport::EventQueue& queue(size_t transport) { return *io_[transport].queue; }
  // A server to connect to again now; -1: none, and by *next there may be.
  int LinkToConnect(absl::Time* next) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until there is one; -1: the session stops.
  int AwaitLinkToConnect() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tries once. Only one thread at a time may.
  void Reconnect(int server) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends waits for turns.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool stopping() const ABSL_LOCKS_EXCLUDED(mutex_);

  // As ParameterClient::Follow, `layout` of the same units, partitions and ranges.
  bool Follow(Layout layout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Begin(int64_t version, int64_t step, int64_t attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Prefetch(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<View> Get(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  void Release(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  // `gradient`: see PushTable.
  absl::Status Enqueue(int unit, const void* gradient, const plan::Contribution& contribution,
                       GradientReturn* done) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Acknowledged(int64_t pack) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until that gradient's memory is no longer needed.
  absl::Status AwaitTaken(int unit, const void* gradient) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<int64_t>> Finish(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t ArriveAtBarrier() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckAttempt() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool LacksServer() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WaitAtBarrier(int64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  ClientStatistics statistics() const ABSL_LOCKS_EXCLUDED(mutex_);

  const ClientOptions& options() const { return options_; }
  const Layout& layout() const { return layout_; }
  DType wire_type() const { return wire_type_; }
  int64_t published() const { return published_; }
  int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  // This worker's progress through the attempt's barriers (core/transport/data_layout.h).
  struct Barriers {
    uint32_t tag = 0;
    uint32_t arrived = 0;
    uint32_t rung = 0;  // of those, reported to the server
    uint32_t over = 0;
    bool ended = false;  // a newer attempt has begun
    int waiting = 0;     // blocked callers
    absl::Time rung_at = absl::InfinitePast();
  };
  struct Link {
    Link(size_t transports, const TransportPolicyOptions& options) : policy(transports, options) {}

    enum class State { kOpen, kClosing, kConnecting, kFailed };
    State state = State::kConnecting;
    int failures = 0;                              // in a row
    absl::Time not_before = absl::InfinitePast();  // earliest next try
    absl::Status error;                            // why it broke, or failed
    absl::Time last_scan = absl::InfinitePast();
    TransportPolicy policy;
    bool connected_before = false;
    size_t last_transport = 0;  // of the current or last connection
    bool try_again = false;     // closes it to try another transport, until a try has failed
    std::unique_ptr<DataConnection> connection;  // only a turn of its transport retires it
  };
  struct Io {
    transport::Transport* transport = nullptr;
    std::unique_ptr<transport::EventQueue> queue;
    bool used = false;
    std::vector<uint64_t> closed_early;  // connections that closed before they were adopted
    // A turn's scratch.
    std::array<transport::Event, 64> events;
    std::vector<transport::ReadOperation> reads;
    std::vector<transport::ReadOperation> headers;
    std::vector<float> piece;
  };

  // client/io_turn.cc
  void Handle(Io& io, const transport::Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Serve(int server, size_t io, absl::Time now, absl::Time* next) ABSL_LOCKS_EXCLUDED(mutex_);
  bool PostReads(int server, Io& io, DataConnection& connection, absl::Time now, absl::Time* next)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool PostPush(int server, DataConnection& connection, absl::Time now, absl::Time* next)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool FillBuffer(int server) ABSL_LOCKS_EXCLUDED(mutex_);
  bool RingBarrier(int server, DataConnection& connection, absl::Time now, absl::Time* next)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBarrier(uint32_t immediate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScanAcknowledgements(int server, absl::Time now, absl::Time* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Convert(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  bool ConvertKept(Io& io) ABSL_LOCKS_EXCLUDED(mutex_);
  void ConvertFromFiles(int unit, Io& io) ABSL_LOCKS_EXCLUDED(mutex_);
  bool GiveBackGradients() ABSL_LOCKS_EXCLUDED(mutex_);
  void Count(int server, const PushTable::Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadElsewhere(int server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes the connection; kClosed follows.
  void Break(int server, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnClosed(int server, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // client/reconnect.cc
  absl::StatusOr<std::unique_ptr<DataConnection>> ConnectFirst(int server, absl::Time deadline);
  absl::Status Adopt(int server, const std::vector<bool>& left_out,
                     std::unique_ptr<DataConnection> connection)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts a lost connection of that link over `transport`.
  void CountBreak(int server, size_t transport) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountRest(int server, size_t transport) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int NextToConnect(absl::Time now, absl::Time* next) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration Delay(int failures);

  bool CanFollow(const Layout& layout) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake(int unit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeAll() const;
  void WakeServer(int server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the current attempt cannot continue, or OK.
  absl::Status Failure() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StartFetch(int unit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Link& link(int server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return links_[static_cast<size_t>(server)];
  }

  const ClientOptions options_;
  // Where partitions are changes between steps alone, with all links open and nothing under way, so
  // that no other thread reads it then. All else is constant.
  Layout layout_;
  const std::vector<transport::Transport*> transports_;
  Clock& clock_;
  std::vector<Io> io_;  // by transport
  std::function<void(size_t)> use_;
  std::unique_ptr<ServerConnections> connections_;
  Random random_;  // Reconnect's

  // Set by Start, then constant.
  DType wire_type_ = DType::kF32;
  int64_t published_ = 0;
  int64_t buffer_bytes_ = 0;
  std::unique_ptr<RegisteredMemory> headers_;
  BufferPool view_buffers_;
  BufferPool wire_buffers_;

  mutable absl::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);  // by server
  std::unique_ptr<FetchTable> fetches_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PushTable> pushes_ ABSL_GUARDED_BY(mutex_);
  Barriers barriers_ ABSL_GUARDED_BY(mutex_);
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // of a push of this attempt
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  ClientStatistics statistics_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::client
