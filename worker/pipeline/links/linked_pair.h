// What a stage shares with one neighbour for messages from GPU to GPU (communicator_links.h):
// communicators, and the control messages about what goes over them.
//
// A step that finds them unconnected connects them: the lower stage makes the ids and sends them,
// and both join. Until then the only sign of the neighbour is whether its links are open, which is
// watched.
//
// Threads: one begins a step; the communicators' check comes from theirs, at any time while they
// exist. Failure: as in CommunicatorPair and LinkControl.
#pragma once

#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/plan/schedule/schedule_queues.h"
#include "worker/pipeline/links/communicator_pair.h"
#include "worker/pipeline/links/link_control.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class LinkedPair {
 public:
  // `check`: whether the attempt goes on; may be empty.
  explicit LinkedPair(CommunicatorPair::Options options);

  // Call once `host` has begun the step with these queues of control messages. Blocks until they
  // are connected.
  absl::Status BeginStep(StageLinks& host, std::span<const plan::MessageQueue> control);

  CommunicatorPair& communicators() { return communicators_; }
  LinkControl& control() { return control_; }

  // Held around a call and the control message that announces it, so that both have one order.
  absl::Mutex starting;

 private:
  absl::StatusOr<LinkIds> HearIds();
  // Whether the attempt goes on and, while connecting, so does the neighbour.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the links of the step while connecting; null afterwards.
  void Watch(StageLinks* host) ABSL_LOCKS_EXCLUDED(mutex_);

  const CommunicatorPair::Options options_;
  LinkControl control_;
  absl::Mutex mutex_;
  // null: no control messages are heard
  StageLinks* connecting_over_ ABSL_GUARDED_BY(mutex_) = nullptr;
  CommunicatorPair communicators_;  // destroyed first: it calls the check until then
};

}  // namespace shoal::worker
