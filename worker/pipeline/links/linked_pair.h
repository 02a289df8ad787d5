// What a stage has with one neighbour for messages from GPU to GPU (communicator_links.h):
// communicators, and the words about what goes over them.
//
// A step that finds them not connected connects them: the lower stage makes the ids and says them,
// and both join. Until then all that is heard of the neighbour is whether its links are open, and
// that is watched.
//
// Threads: one begins a step; the communicators' check comes from theirs, at any time until they
// are gone. Failure: as CommunicatorPair's and LinkWords'.
#pragma once

#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/plan/schedule/schedule_queues.h"
#include "worker/pipeline/links/communicator_pair.h"
#include "worker/pipeline/links/link_words.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class LinkedPair {
 public:
  // `check`: whether the attempt goes on; may be empty.
  explicit LinkedPair(CommunicatorPair::Options options);

  // Once `host` has begun the step with these queues of words. Blocks until they are connected.
  absl::Status BeginStep(StageLinks& host, std::span<const plan::MessageQueue> words);

  CommunicatorPair& communicators() { return communicators_; }
  LinkWords& words() { return words_; }

  // Held around a call and the word that says so, which both are in one order.
  absl::Mutex starting;

 private:
  absl::StatusOr<LinkIds> HearIds();
  // Whether the attempt, and while they connect the neighbour, go on.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mutex_);
  // The links of the step, while they connect; then none.
  void Watch(StageLinks* host) ABSL_LOCKS_EXCLUDED(mutex_);

  const CommunicatorPair::Options options_;
  LinkWords words_;
  absl::Mutex mutex_;
  StageLinks* connecting_over_ ABSL_GUARDED_BY(mutex_) = nullptr;  // no words are heard
  CommunicatorPair communicators_;  // goes first: while it does, it checks
};

}  // namespace shoal::worker
