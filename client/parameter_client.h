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
// buffers) happen on the I/O thread and never on the caller's: the caller computes meanwhile. A Get
// that finds nothing prefetched pays two hand-offs between threads (tens of microseconds) for that;
// in return posting and completion have one owner, and a first Get of a step is the only such case.
// Ownership. Server client, transports and clock must outlive the client. Views stay valid until
// the Release that matches their Get. Buffers are made when the client is created; steady state
// does not allocate.
// Failure. A broken connection is made anew, a bounded number of times with jittered back-off;
// reads are read again and pushes sent again under the same sequence. When a server stays away, or
// refuses, every call that needs it returns the reason until the next BeginStep, which tries once
// more. A transport that keeps failing gives way to the next for a while
// (client/transport_policy.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/options.h"
#include "client/server_client.h"
#include "core/base/clock.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/transport/transport.h"

namespace shoal::client {

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
      ServerClient* server_client, const std::vector<transport::Transport*>& transports,
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
  // Barriers, for workers that wait for each other at layers (server/service/layer_barrier.h).
  // ArriveAtBarrier says that this worker is at the attempt's next barrier and returns its number,
  // from 1; it does not wait. WaitAtBarrier returns when all workers have arrived at barrier
  // `number`; Aborted when the attempt ended instead, DeadlineExceeded after barrier_timeout.
  int64_t ArriveAtBarrier();
  absl::Status WaitAtBarrier(int64_t number);
  // Why the attempt cannot go on, as far as it is known here: Aborted when the coordinator has
  // begun another one (which it tells the workers that meet at layers, whether they arrive at
  // barriers or not), or what every call would return. Does not wait.
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
