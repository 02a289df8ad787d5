// The communicators of a stage with one neighbour: one for each direction, with only these two
// ranks and its own stream. Part of communicator_links.h, which says why.
//
// Connect makes both, and sends a few bytes over each: the first call of a communicator connects
// the two GPUs and waits for the other rank to do the same, which no later call may do.
//
// Threads: one at a time for the calls; communicators and status from any. Failure: a communicator
// that has failed (worker/collectives/collectives.h) stays so; Disconnect and Connect make new
// ones.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"
#include "worker/pipeline/links/link_control.h"

namespace shoal::worker {

class CommunicatorPair {
 public:
  struct Options {
    int stage = 0;
    int peer = 0;
    Device* device = nullptr;
    Collectives* collectives = nullptr;
    absl::Duration timeout;               // for the neighbour to reach a call, and to connect
    std::function<absl::Status()> check;  // as in CommunicatorOptions
  };
  explicit CommunicatorPair(const Options& options);

  absl::StatusOr<LinkIds> NewIds();
  // Blocks until the neighbour has come, with the same ids.
  absl::Status Connect(const LinkIds& ids) ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const { return connected_; }
  void Disconnect() ABSL_LOCKS_EXCLUDED(mutex_);

  // Exchange with the neighbour; the event is done when the memory is free, or filled.
  absl::StatusOr<std::unique_ptr<Event>> Send(const void* from, int64_t bytes,
                                              std::string_view what);
  absl::StatusOr<std::unique_ptr<Event>> Receive(void* to, int64_t bytes, std::string_view what);
  // Waits for all of them; OK if they succeeded.
  absl::Status AwaitDone(absl::Time deadline);

  // Returns those that are connected, to be aborted.
  std::vector<std::shared_ptr<Communicator>> communicators() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until nothing of them is on the device any more, whatever the outcome; call after
  // AbortAtOnce.
  void Synchronize();

 private:
  // From the lower stage to the higher one, and back.
  struct Path {
    std::unique_ptr<Stream> stream;
    std::shared_ptr<Communicator> communicator;  // destroyed first; shared with its aborter
  };

  bool lower() const { return options_.stage < options_.peer; }
  int rank() const { return lower() ? 0 : 1; }
  Path& outgoing() { return paths_[lower() ? 0 : 1]; }
  Path& incoming() { return paths_[lower() ? 1 : 0]; }
  absl::Status Join(const LinkIds& ids) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Try();

  const Options options_;
  bool connected_ = false;
  mutable absl::Mutex mutex_;
  // Only the connecting thread changes communicators, under the lock; others take it to read them.
  std::array<Path, 2> paths_;
};

// Aborts all communicators of a stage at the same time: what an abort frees may wait for everything
// on the GPU, and so for the halves of calls of other communicators, until those are aborted too.
void AbortAtOnce(const std::vector<std::shared_ptr<Communicator>>& communicators,
                 const absl::Status& why);

}  // namespace shoal::worker
