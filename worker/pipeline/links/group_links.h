// All links of a stage, to neighbours that may each use another transport. Decides when they are
// recreated.
//
// Connections are kept from step to step. They are replaced
// - in an attempt that is not a step's first, so that nothing of the failed attempt arrives in it;
//   if it has no messages, in the next step that has some;
// - between two stages whose messages need more memory than those of any step before.
//
// Both sides of a connection see that by themselves: attempt and schedule are the same for all
// stages. Threads: as in StageLinks; Prepare like BeginStep.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/plan/schedule/schedule_queues.h"
#include "worker/pipeline/links/connect_stages.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class GroupLinks final : public StageLinks {
 public:
  // `longest_message`: size of the longest that any step will have.
  GroupLinks(int stage, int64_t longest_message, absl::Duration connect_timeout,
             StageConnections* connections)
      : stage_(stage),
        longest_message_(longest_message),
        connect_timeout_(connect_timeout),
        connections_(connections) {}

  // Call before BeginStep: connects with the stages that the whole schedule's queues name. Blocks
  // until those have reached the same attempt.
  absl::Status Prepare(const StepAttempt& attempt, std::span<const plan::MessageQueue> queues);

  // Call it instead if the group has no microbatches.
  void Skip(const StepAttempt& attempt);

  absl::Status BeginStep(const StepMessages& step) override;
  absl::Status EndStep(absl::Duration timeout) override;
  absl::StatusOr<std::byte*> Reserve(const StageMessage& message, absl::Duration timeout) override;
  absl::Status Send(const StageMessage& message) override;
  absl::Status Post(const StageMessage& message) override;
  absl::StatusOr<const std::byte*> Await(const StageMessage& message,
                                         absl::Duration timeout) override;
  absl::Status Consumed(const StageMessage& message) override;
  // Only on the thread of the steps.
  bool OnDevice(int peer) const override;
  void Close(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Status of the first link that is closed.
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Pair {
    LinkMemory memory;
    std::unique_ptr<TransportLinks> links;
    bool spent = false;  // an attempt has failed since it was made
  };
  absl::StatusOr<TransportLinks*> LinksTo(int peer);

  const int stage_;
  const int64_t longest_message_;
  const absl::Duration connect_timeout_;
  StageConnections* const connections_;

  // Only the thread of the steps changes it, under the lock; Close takes the lock to read it.
  mutable absl::Mutex mutex_;
  std::map<int, Pair> pairs_;  // by peer
};

}  // namespace shoal::worker
