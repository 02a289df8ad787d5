// What a ParameterClient is made with, what it is given back to, and what it counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/dtype.h"
#include "core/model/unit_shards.h"
#include "core/transport/transport.h"

namespace shoal::client {

// Gives that many bytes, page-aligned, for as long as the pointer is there: where others
// than the transports have wishes as to their kind (a GPU copies from pinned memory alone at full
// speed, or transports reach its own memory).
using BufferAllocator = std::function<absl::StatusOr<std::shared_ptr<std::byte>>(int64_t bytes)>;

// Told when a gradient given to PushAsync or PushInPlace is not needed any more (it lies in
// buffers, or is acknowledged, or the push was dropped). Called without locks held, from an I/O
// thread or from within BeginStep.
class GradientReturn {
 public:
  virtual ~GradientReturn() = default;
  virtual void Returned(int unit, const void* gradient) = 0;
};

// When a transport is left out for a while (client/transport_policy.h).
struct TransportPolicyOptions {
  int breaks = 3;                             // in a row, that make a transport rest
  absl::Duration lasting = absl::Minutes(1);  // a connection that lasted this long was a good one
  absl::Duration first_rest = absl::Seconds(30);
  absl::Duration longest_rest = absl::Minutes(10);
};

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
  int buffers_per_size =
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
  absl::Duration barrier_timeout = absl::Minutes(10);  // for the slowest worker
  absl::Duration connect_timeout = absl::Seconds(10);  // of all of Create's connecting
  // Asked between Create's tries: why there need be no more, or OK. May be empty. What is under way
  // ends sooner where `server_client` is cancelled.
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
  int64_t barriers = 0;  // come to
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
  double barrier_wait_seconds = 0;  // callers blocked in Await
  double push_wait_seconds = 0;     // callers blocked in Push, PushAsync and Finish
};

}  // namespace shoal::client
