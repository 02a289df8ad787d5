// ParameterClient: how a worker, a test or an inference engine reaches the service. Gets fetch the
// weights of a unit by one-sided reads from the servers that hold its partitions; pushes deliver
// its gradient to them, each exactly once. Hides routing, transports, credits, retries and
// reconnects. Errors name unit, server and what the call waited for.
//
// A step of a worker:
//   BeginStep(step, attempt, generation)      // weights of version step - 1
//   for each microbatch, for each unit:  Prefetch ahead, Get, compute, Release; Push
//   Finish(timeout) -> acknowledged pushes by server
//
// Threads. All methods are thread-safe; a worker calls them from its compute thread, which makes
// the bytes moved a function of the program alone. The client has one I/O thread per transport in
// use, and a reconnect thread. Copies (shm reads, conversions, filling of buffers) run on the I/O
// thread while the caller computes. A Get without prefetch therefore pays two hand-offs between
// threads (tens of microseconds), as the first Get of a step does.
//
// Ownership. Server client, transports and clock must outlive the client. Views stay valid until
// the Release that matches their Get. Buffers are allocated on creation; steady state allocates
// nothing.
//
// Failure. A broken connection is recreated a bounded number of times, with jittered back-off;
// reads are repeated and pushes sent again with the same key. If a server stays away, or
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
#include "core/model/contribution.h"
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
    int last_server = 0;  // whose part of it came last; -1: it is from files
  };

  // Connects to all servers of the map (indices 0 to servers - 1) and returns when all are
  // connected. `transports` in order of preference; skips one that cannot register the buffers.
  static absl::StatusOr<std::unique_ptr<ParameterClient>> Create(
      const ClientOptions& options, const std::vector<plan::UnitSpec>& units,
      const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map, int servers,
      ServerClient* server_client, const std::vector<transport::Transport*>& transports,
      Clock& clock = RealClock());
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  // Goes on by `map`, the next one of the same servers, with what it has: buffers, connections and
  // weights that were kept for the step. Call it between steps. False, and nothing has changed: it
  // cannot, because a connection does not reach what has come to its server, or is lost, or
  // something is still under way.
  bool Follow(const std::vector<plan::UnitSpec>& units,
              const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map);

  // Drops the state of the last step: uses, waiting gradients, errors. FailedPrecondition if the
  // generation is not the shard map's.
  absl::Status BeginStep(int64_t step, int64_t attempt, int64_t generation);
  // For readers outside the barrier: requests weights of `version` from now on. It must have been
  // published before (a header read after the data cannot tell that the data was read before it was
  // written); within a step this holds, because the coordinator starts a step after all have
  // committed.
  absl::Status BeginRead(int64_t version);
  // The newest version that all servers had published when the client connected.
  int64_t published() const;

  // Starts fetching and takes a use, which a Release ends. False: no buffer is free, no use taken.
  bool Prefetch(int unit);
  // Blocks until the unit has arrived, and takes a use.
  absl::StatusOr<View> Get(int unit);
  // Ends one use (of a Get or a Prefetch).
  void Release(int unit);

  // Delivers the unit's gradient (all of its elements); the caller may reuse `gradient` afterwards.
  // Of the pushes with the same key the service counts one. An error may be from an earlier push of
  // this attempt, or of a lost server.
  absl::Status Push(int unit, std::span<const float> gradient,
                    const plan::Contribution& contribution);
  // Same as Push, but returns at once: `gradient` must stay until done->Returned. Blocks only while
  // max_gradients are waiting. After an error Returned is not called.
  absl::Status PushAsync(int unit, std::span<const float> gradient,
                         const plan::Contribution& contribution, GradientReturn* done);
  // Same as PushAsync, with options.push_in_place: `gradient` has the gradient type and is in
  // memory that the transports registered (client/registered_memory.h). They or their devices read
  // it until done->Returned, when servers have acknowledged all of it or it was dropped.
  absl::Status PushInPlace(int unit, std::span<const std::byte> gradient,
                           const plan::Contribution& contribution, GradientReturn* done);
  // Whether all pushes of the pack that were called for in this attempt are acknowledged.
  bool Acknowledged(int64_t pack) const;
  // Barriers, for workers that wait for each other at layers (server/service/layer_barrier.h).
  // ArriveAtBarrier announces this worker at the attempt's next barrier and returns its number,
  // from 1, without blocking. WaitAtBarrier blocks until all workers have arrived at barrier
  // `number`; Aborted if the attempt ends first, DeadlineExceeded after barrier_timeout.
  int64_t ArriveAtBarrier();
  absl::Status WaitAtBarrier(int64_t number);
  // Why the attempt cannot continue, as far as known here: Aborted if the coordinator has begun
  // another one (workers with barriers hear of it in any case), or the error that every call would
  // return. Does not block.
  absl::Status CheckAttempt() const;

  // Whether a connection to a server is lost, and not there again yet. Does not block.
  bool LacksServer() const;

  // Blocks until all pushes of this attempt are acknowledged; returns their number by server.
  absl::StatusOr<std::vector<int64_t>> Finish(absl::Duration timeout);

  // Makes every blocked and later call return `why` (not OK): this client is leaving.
  void Cancel(const absl::Status& why);

  ClientStatistics statistics() const;
  // Bytes of the buffers for weights and for pushes in flight.
  int64_t buffer_bytes() const;
  DType wire_type() const;

 private:
  class Core;
  explicit ParameterClient(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace shoal::client
