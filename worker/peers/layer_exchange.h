// Exchanges weights and gradients among workers (train.synchronization: layer, each worker on a GPU
// of its own): a communicator of all workers, and its stream.
//
// Create settles with all peers, for the whole job, whether there is one (peer_service.h). The
// first step makes the communicator and later steps keep it. An attempt that is not a step's first
// recreates it, so that nothing of the failed one is left; all workers know when by themselves.
//
// Threads: the compute thread; Cancel from any. Failure: an attempt that another worker gave up or
// does not join ends with an error (worker/collectives/collectives.h), and its results are
// worthless: ask status() before any of them leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"
#include "worker/peers/cancellation.h"
#include "worker/peers/peer_service.h"
#include "worker/peers/rendezvous.h"
#include "worker/peers/stage_client.h"
#include "worker/peers/stage_group.h"

namespace shoal::worker {

class LayerExchange {
 public:
  struct Options {
    WorkerGroup peers;
    std::unique_ptr<StageClient> client;  // to them
    PeerService* service = nullptr;       // of this worker; the first one calls its own
    // This worker's GPU and library, or why it has none.
    absl::StatusOr<std::unique_ptr<Collectives>> collectives;
    Device* device = nullptr;  // where there is one
    int64_t generation = 0;
    Cancellation* cancellation = nullptr;  // of this worker, which ends waits for peers
    // Whether the current attempt continues, as CommunicatorOptions::check. Not called by Create.
    std::function<absl::Status()> check;
    absl::Duration peer_timeout = absl::Minutes(2);   // for all of them to come
    absl::Duration call_timeout = absl::Seconds(10);  // of one call
    absl::Duration timeout = absl::Minutes(10);       // of one collective
  };
  // Blocks until all peers have come. An error: it could not be settled.
  static absl::StatusOr<std::unique_ptr<LayerExchange>> Create(Options options);
  ~LayerExchange();

  // Whether there is an exchange. If not, this object only tells other peers so.
  bool on() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  std::string_view library() const { return collectives_->name(); }
  int rank() const { return peers_.rank; }
  int ranks() const { return peers_.size(); }
  Stream& stream() { return *stream_; }

  absl::Status BeginAttempt(const StepAttempt& attempt, int64_t generation);
  // As Communicator's, on stream(): all ranks in the same order.
  absl::Status AllGather(const void* from, void* to, int64_t count, DType dtype,
                         std::string_view what);
  absl::Status ReduceScatter(const void* from, void* to, int64_t count, DType dtype,
                             std::string_view what);
  absl::Status status() ABSL_LOCKS_EXCLUDED(mutex_);
  // If `how` is not OK, also ends calls in flight.
  void EndAttempt(const absl::Status& how);
  // Ends without another attempt.
  void Disconnect() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends this attempt and all later ones with `why`.
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Statistics {
    int64_t all_gathers = 0;
    int64_t reduce_scatters = 0;
    int64_t gathered_bytes = 0;  // received from others
    int64_t reduced_bytes = 0;   // sent to others
  };
  const Statistics& statistics() const { return statistics_; }

 private:
  explicit LayerExchange(Options options);
  absl::Status Connect(const StepAttempt& attempt, const std::string& id);
  absl::StatusOr<Communicator*> Usable() ABSL_LOCKS_EXCLUDED(mutex_);

  const WorkerGroup peers_;
  const std::unique_ptr<StageClient> client_;
  PeerService* const service_;
  const std::unique_ptr<Collectives> collectives_;
  const std::function<absl::Status()> check_;
  const absl::Duration peer_timeout_;
  const absl::Duration timeout_;
  Rendezvous rendezvous_;
  std::unique_ptr<Stream> stream_;
  std::string why_not_;
  std::string first_id_;  // settled, and not used yet
  Statistics statistics_;

  absl::Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  // Only the compute thread changes it, under the lock, which Cancel takes to read it.
  std::unique_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker
