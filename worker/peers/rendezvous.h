// Meets other workers to settle whether they exchange by collectives: the caller's side of
// peer_service.h, for all workers of a job or the stages of a pipeline.
//
// Threads: one calls Join. Failure: DeadlineExceeded if workers do not come. A cancelled worker
// ends Join at once with the reason, and closes client and service, so that peers hear it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "worker/backend/backend.h"
#include "worker/backend/open/open_device.h"
#include "worker/collectives/collectives.h"
#include "worker/peers/cancellation.h"
#include "worker/peers/peer_service.h"
#include "worker/peers/stage_client.h"
#include "worker/peers/stage_group.h"

namespace shoal::worker {

// Opens what a worker takes part with, or says why it cannot. `gpu` is null on the CPU; `open` may
// be empty (OpenedDevice).
absl::StatusOr<std::unique_ptr<Collectives>> OpenCollectives(const Device* gpu,
                                                             const CollectivesOpener& open);

class Rendezvous {
 public:
  struct Options {
    WorkerGroup peers;
    StageClient* client = nullptr;  // to them
    // of this worker; the first of them calls by itself
    PeerService* service = nullptr;
    const Collectives* collectives = nullptr;         // null: this worker cannot take part,
    std::string unavailable;                          // for that reason
    bool on_gpu = false;                              // whether it computes on one all the same
    Cancellation* cancellation = nullptr;             // of this worker
    absl::Duration timeout = absl::Minutes(2);        // for all of them to come
    absl::Duration call_timeout = absl::Seconds(10);  // of one call
  };
  explicit Rendezvous(Options options) : options_(std::move(options)) {}

  // Blocks until all have come or `check` fails.
  absl::StatusOr<proto::JoinRendezvousReply> Join(const StepAttempt& attempt, int64_t generation,
                                                  const std::function<absl::Status()>& check);

 private:
  int rank() const { return options_.peers.rank; }
  int ranks() const { return options_.peers.size(); }
  proto::JoinRendezvousRequest RequestFor(const StepAttempt& attempt, int64_t generation) const;

  const Options options_;
};

}  // namespace shoal::worker
