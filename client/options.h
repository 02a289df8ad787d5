// Options of a ParameterClient, its callback for gradients, and its statistics.
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
#include "core/model/model_spec.h"
#include "core/model/unit_shards.h"
#include "core/transport/transport.h"

namespace shoal::client {

// Returns that many bytes, page-aligned, freed with the last pointer. For memory of a special kind:
// pinned (a GPU copies at full speed only from that), or a GPU's own, if transports reach it.
using BufferAllocator = std::function<absl::StatusOr<std::shared_ptr<std::byte>>(int64_t bytes)>;

// Called when a gradient given to PushAsync or PushInPlace is no longer needed (copied to buffers,
// acknowledged, or the push dropped). Called without locks held, from an I/O thread or within
// BeginStep.
class GradientReturn {
 public:
  virtual ~GradientReturn() = default;
  virtual void Returned(int unit, const void* gradient) = 0;
};

// When a transport is skipped for a while (client/transport_policy.h).
struct TransportPolicyOptions {
  int breaks = 3;                             // in a row, after which a transport rests
  absl::Duration lasting = absl::Minutes(1);  // a connection counts as good after this long
  absl::Duration first_rest = absl::Seconds(30);
  absl::Duration longest_rest = absl::Minutes(10);
};

struct ClientOptions {
  std::string job_id;                 // servers refuse other jobs
  uint64_t incarnation = 0;           // from the coordinator
  std::string name = "client";        // for the servers' messages: "worker-1"
  bool read_only = false;             // never pushes (an inference engine)
  DType compute_type = DType::kF32;   // of Get's views
  DType gradient_type = DType::kF32;  // of payloads on the wire

  // The units to get: a pipeline stage has some of the model's. Empty: all. Only these have
  // buffers.
  std::vector<int> units;
  // By unit, the range that this client gets and pushes, in whole partitions
  // (plan::WholePartitions); views and gradients then cover that range. Empty: all of each unit. A
  // unit with an empty range is neither got nor pushed.
  std::vector<plan::ElementRange> ranges;
  // Reads the units that servers do not have (plan::UnitSpec::from_files), from I/O threads, piece
  // by piece; empty: there are none.
  plan::UnitReader files;
  bool keep_for_step = false;  // residency: false, per use (layer); true, for the step
  int buffers_per_size = 4;    // layer residency: per distinct unit size, held + prefetched
  // Allocates Get's buffers; empty: this process's own memory. Memory that the host cannot touch (a
  // GPU's) works if weights travel in the compute type, over transports that reach it.
  BufferAllocator view_memory;
  // Gradients are pushed from the caller's memory (PushInPlace), which all transports must have
  // registered, possibly a GPU's, and in gradient_type; otherwise they are copied first.
  bool push_in_place = false;
  // Reads weights and writes gradients directly in the GPU memory of a server on this host, if it
  // keeps them there: for view_memory, or gradients pushed in place, on a GPU.
  bool weights_in_gpu = false;
  bool payloads_in_gpu = false;
  bool verify_pushes = false;  // hash what is copied to buffers, for servers to check
  int max_gradients = 8;       // waiting for credits (in place: acknowledgements)

  absl::Duration get_timeout = absl::Seconds(10);
  absl::Duration file_timeout = absl::Minutes(10);  // of a get of what is in files
  absl::Duration push_timeout = absl::Seconds(30);
  absl::Duration barrier_timeout = absl::Minutes(10);  // for the slowest worker
  absl::Duration connect_timeout = absl::Seconds(10);  // for all of Create
  // Create calls this between tries and stops if it is not OK. May be empty. To end a call in
  // progress sooner, cancel `server_client`.
  std::function<absl::Status()> check;
  absl::Duration handshake_timeout = absl::Seconds(5);      // per try
  int max_reconnects = 5;                                   // in a row without progress
  absl::Duration reconnect_delay = absl::Milliseconds(20);  // doubles, with jitter
  TransportPolicyOptions transport_policy;
  int max_version_reads = 12;
  absl::Duration version_retry_delay = absl::Milliseconds(1);
  absl::Duration rescan_interval =
      absl::Milliseconds(100);  // rescan for acknowledgements without doorbell
  uint64_t seed = 1;            // of the jitter

  // Called with how long a partition took over that transport, from posting its reads until it had
  // the version asked for, or from posting its push until the acknowledgement. Under the client's
  // lock. May be empty.
  std::function<void(const std::string& transport, absl::Duration took)> got;
  std::function<void(const std::string& transport, absl::Duration took)> pushed;
};

struct ClientStatistics {
  struct Transport {
    std::string name;
    int64_t get_bytes = 0;       // of weights, repeated reads included
    int64_t push_bytes = 0;      // of gradients, repeated pushes included
    int64_t gpu_get_bytes = 0;   // of those, from GPU memory of servers
    int64_t gpu_push_bytes = 0;  // of those, to GPU memory of servers
    int64_t connections = 0;
    int64_t rests = 0;                      // rests after failures (transport_policy.h)
    transport::TransportStatistics memory;  // the transport's own totals
  };
  struct Connection {
    std::string transport;
    std::string reason;  // why not the first transport; empty if it is that
    bool weights_in_gpu = false;
    bool payloads_in_gpu = false;
  };
  std::vector<Transport> transports;
  std::vector<Connection> connections;  // by server: the latest
  int64_t gets = 0;
  int64_t barriers = 0;                   // arrivals
  int64_t fetches = 0;                    // units fetched: gets minus those served from residency
  int64_t pushes = 0;                     // partitions pushed
  int64_t rereads = 0;                    // partitions read again for their version
  std::vector<int64_t> server_get_bytes;  // of weights, by server
  int64_t backup_get_bytes = 0;           // of those, from others than are pushed to
  // Partitions read at the server that they are pushed to, since the other was lost or had another
  // version.
  int64_t backup_fallbacks = 0;
  int64_t reconnects = 0;
  int64_t resent = 0;               // pushes sent again after a reconnect
  int64_t duplicates = 0;           // of those, how many the server had applied already
  int64_t fallbacks = 0;            // connections over another than the first transport
  int64_t switches = 0;             // links that changed their transport
  int64_t found_by_scan = 0;        // acknowledgements whose doorbell was lost
  int64_t most_in_flight = 0;       // pushes at one server
  double get_wait_seconds = 0;      // callers blocked in Get
  double barrier_wait_seconds = 0;  // callers blocked in Await
  double push_wait_seconds = 0;     // callers blocked in Push, PushAsync and Finish
};

}  // namespace shoal::client
