// ParameterClient: how a worker, a test or an inference engine reaches the service. Gets fetch the
// weights of a unit by one-sided reads from the servers that hold its partitions; pushes deliver
// its gradient to them, each exactly once. Routing, transports, credits, retries and reconnects are
// hidden; what cannot be hidden comes back as an error that names unit, server and what was
// awaited.
//
// A step of a worker:
//   BeginStep(step, attempt, generation)      // weights of version step - 1
//   for each microbatch, for each unit:  Prefetch ahead, Get, compute, Release; Push
//   Finish(timeout) -> acknowledged pushes by server
//
// Threads. All methods may be called from any thread; a worker calls them from its compute thread,
// which makes the bytes moved a function of the program alone. The client's own: one I/O thread per
// transport in use, and one that makes connections anew. Copies (shm reads, conversions, filling of
// parcels) happen on the I/O thread and never on the caller's: the caller computes meanwhile. A Get
// that finds nothing prefetched pays two hand-offs between threads (tens of microseconds) for that;
// in return posting and completion have one owner, and a first Get of a step is the only such case.
// Ownership. Connector, transports and clock must outlive the client. Views stay valid until the
// Release that matches their Get. Buffers are made when the client is created; steady state does
// not allocate.
// Failure. A broken connection is made anew, a bounded number of times with jittered back-off;
// reads are read again and pushes sent again under the same sequence. When a server stays away, or
// refuses, every call that needs it returns the reason until the next BeginStep, which tries once
// more. A transport that keeps failing gives way to the next for a while
// (client/transport_policy.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/push_table.h"
#include "client/registered_memory.h"
#include "client/server_connector.h"
#include "client/transport_policy.h"
#include "core/base/clock.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/model/unit_shards.h"
#include "core/transport/transport.h"

namespace shoal::client {

struct ClientOptions {
  std::string job_id;                 // servers refuse another's
  uint64_t incarnation = 0;           // from the coordinator
  std::string name = "client";        // for the servers' messages: "worker-1"
  bool read_only = false;             // never pushes (an inference engine)
  DType compute_type = DType::kF32;   // of the views that Get gives
  DType gradient_type = DType::kF32;  // of payloads on the wire

  // The units that are got: a stage of a pipeline has some of the model's. Empty: all. There are
  // buffers for these alone.
  std::vector<int> units;
  // By unit, what of it this client gets and pushes, in whole partitions (plan::WholePartitions):
  // views and gradients are of that range then. Empty: all of each unit. One with an empty range is
  // not got or pushed.
  std::vector<plan::ElementRange> ranges;
  bool keep_for_step = false;  // residency: false, fetched per use (layer); true, kept for the step
  int frames_per_size =
      4;  // layer residency: buffers per distinct unit size; units held + prefetched
  // Of the buffers that Get gives; empty: this process's own memory. Memory that the host does not
  // touch (a GPU's) serves where weights travel in the compute type, over transports that reach it.
  BufferAllocator view_memory;
  // Gradients are pushed from where they lie (PushInPlace), in memory that all of the transports
  // know, a GPU's too, and in gradient_type; else they are copied first.
  bool push_in_place = false;
  // Where a server on this host keeps weights, or takes gradients, in memory of a GPU, they are
  // read and written there: for view_memory, or gradients pushed in place, of a GPU.
  bool weights_in_gpu = false;
  bool payloads_in_gpu = false;
  int max_gradients = 8;  // that wait for credits (in place: for acknowledgements) at a time

  absl::Duration get_timeout = absl::Seconds(10);
  absl::Duration push_timeout = absl::Seconds(30);
  absl::Duration meeting_timeout = absl::Minutes(10);  // for the slowest worker
  absl::Duration connect_timeout = absl::Seconds(10);  // of all of Create's connecting
  // Asked between Create's tries: why there need be no more, or OK. May be empty. What is under way
  // ends sooner where the connector is cancelled.
  std::function<absl::Status()> check;
  absl::Duration handshake_timeout = absl::Seconds(5);      // of one try
  int max_reconnects = 5;                                   // in a row without progress
  absl::Duration reconnect_delay = absl::Milliseconds(20);  // doubles, with jitter
  TransportPolicyOptions transport_policy;
  int max_version_reads = 12;
  absl::Duration version_retry_delay = absl::Milliseconds(1);
  absl::Duration rescan_interval =
      absl::Milliseconds(100);  // for acknowledgements without doorbell
  uint64_t seed = 1;            // of the jitter
};

struct ClientStatistics {
  struct Transport {
    std::string name;
    int64_t get_bytes = 0;       // of weights, read again ones included
    int64_t push_bytes = 0;      // of gradients, sent again ones included
    int64_t gpu_get_bytes = 0;   // of those, out of memory of servers' GPUs
    int64_t gpu_push_bytes = 0;  // into it
    int64_t connections = 0;
    int64_t rests = 0;  // times it was left out for a while, for its failures (transport_policy.h)
    transport::TransportStatistics memory;  // the transport's own totals
  };
  struct Connection {
    std::string transport;
    std::string reason;  // why not the first transport; empty if it is
    bool weights_in_gpu = false;
    bool payloads_in_gpu = false;
  };
  std::vector<Transport> transports;
  std::vector<Connection> connections;  // by server: the newest
  int64_t gets = 0;
  int64_t meetings = 0;  // come to
  int64_t fetches = 0;   // units fetched: gets less those served by what was there
  int64_t pushes = 0;    // partitions pushed
  int64_t rereads = 0;   // partitions read again because of their version
  int64_t reconnects = 0;
  int64_t resent = 0;               // pushes sent again after a reconnect
  int64_t duplicates = 0;           // of those, how many the server had applied already
  int64_t fallbacks = 0;            // connections over another than the first transport
  int64_t switches = 0;             // links that went over to another transport than before
  int64_t found_by_scan = 0;        // acknowledgements whose doorbell was lost
  int64_t most_in_flight = 0;       // pushes at one server
  double get_wait_seconds = 0;      // callers blocked in Get
  double meeting_wait_seconds = 0;  // callers blocked in Await
  double push_wait_seconds = 0;     // callers blocked in Push, PushAsync and Finish
};

class ParameterClient {
 public:
  struct View {
    const void* data = nullptr;  // of options.compute_type
    int64_t count = 0;
  };

  // Connects to all servers of the map (indices 0 to servers - 1) and returns when all are there.
  // `transports` in order of preference; one that cannot register the buffers is left out.
  static absl::StatusOr<std::unique_ptr<ParameterClient>> Create(
      const ClientOptions& options, const std::vector<plan::UnitSpec>& units,
      const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map, int servers,
      ServerConnector* connector, const std::vector<transport::Transport*>& transports,
      Clock& clock = RealClock());
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  // Drops what is left of the step before: holds, gradients that wait, errors. FailedPrecondition
  // for another generation than the shard map's.
  absl::Status BeginStep(int64_t step, int64_t attempt, int64_t generation);
  // For readers outside the barrier: weights of `version` from here on. It must have been published
  // before (a header read after the data cannot tell that the data was read before it was written);
  // within a step that is so because the coordinator hands out a step when all have committed.
  absl::Status BeginRead(int64_t version);
  // The newest version that all servers had published, when they were connected to.
  int64_t published() const;

  // Starts to fetch and takes a use, which a Release ends. False: no buffer is free now (no use
  // taken).
  bool Prefetch(int unit);
  // Waits for the unit and takes a use.
  absl::StatusOr<View> Get(int unit);
  // Ends one use (of a Get or a Prefetch).
  void Release(int unit);

  // Delivers the unit's gradient; `gradient` (all of the unit's elements) is not needed any more
  // when it returns. An error is that of an earlier push of this attempt, or of a lost server.
  absl::Status Push(int unit, std::span<const float> gradient);
  // The same, returning at once: `gradient` must stay until done->Returned. Blocks only while
  // max_gradients are waiting. After an error Returned is not called for it.
  absl::Status PushAsync(int unit, std::span<const float> gradient, GradientReturn* done);
  // As PushAsync, with options.push_in_place: `gradient` is of the gradient type and in memory that
  // the transports know (client/registered_memory.h). It is read, by them or by their devices,
  // until done->Returned, which comes when servers have acknowledged all of it, or when it was
  // dropped.
  absl::Status PushInPlace(int unit, std::span<const std::byte> gradient, GradientReturn* done);
  // Meetings, for workers that wait for each other at layers (server/service/meeting.h). Come says
  // that this worker is at the attempt's next meeting and returns that one's number, from 1; it
  // does not wait. Await returns when all workers have come to meeting `number`; Aborted when the
  // attempt ended instead, DeadlineExceeded after meeting_timeout.
  int64_t Come();
  absl::Status Await(int64_t number);
  // Why the attempt cannot go on, as far as it is known here: Aborted when the coordinator has
  // begun another one (which it tells the workers that meet at layers, whether they come to
  // meetings or not), or what every call would return. Does not wait.
  absl::Status CheckAttempt() const;

  // Waits until all pushes of this attempt are acknowledged; how many were, by server.
  absl::StatusOr<std::vector<int64_t>> Finish(absl::Duration timeout);

  // Every call that waits, and every one after, returns `why` (not OK): this client is leaving.
  void Cancel(const absl::Status& why);

  ClientStatistics statistics() const;
  // Memory of the buffers for weights and for pushes in flight.
  int64_t buffer_bytes() const;
  DType wire_type() const;

 private:
  class Core;
  explicit ParameterClient(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace shoal::client
