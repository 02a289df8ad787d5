// The thread of a verbs transport. It moves no data, so it costs nothing. Its tasks:
// - answer greetings of accepted connections, and expire handshakes that are not completed;
// - check now and then whether silent peers still live;
// - handle devices that fail or are removed;
// - destroy ended queue pairs once their numbers may be reused.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/file.h"
#include "core/base/refusal_log.h"
#include "core/transport/verbs/connection.h"

namespace shoal::transport {

class VerbsService {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsService>> Start(
      std::vector<std::shared_ptr<VerbsDevice>> devices,
      std::shared_ptr<QueuePairQuarantine> quarantine, absl::Duration keep_alive);
  ~VerbsService();

  const std::shared_ptr<Nudge>& nudge() const { return nudge_; }
  void Watch(std::weak_ptr<VerbsQueueCore> queue) ABSL_LOCKS_EXCLUDED(mutex_);
  // Expects the peer to greet; ends the connection if it does not in time.
  void Expect(std::shared_ptr<VerbsConnectionState> connection, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Expected {
    std::shared_ptr<VerbsConnectionState> connection;
    absl::Time deadline;
  };

  VerbsService(std::vector<std::shared_ptr<VerbsDevice>> devices,
               std::shared_ptr<QueuePairQuarantine> quarantine, absl::Duration tick,
               std::shared_ptr<Nudge> nudge);
  void Run();
  bool stopping() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Sleep(absl::Duration time);
  // Returns true while some are expected.
  bool LookAtHandshakes() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<VerbsQueueCore>> Queues() ABSL_LOCKS_EXCLUDED(mutex_);
  void HearDevice(const VerbsDevice& device) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll(const ibv_context* context, uint32_t queue_pair, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<std::shared_ptr<VerbsDevice>> devices_;
  const std::shared_ptr<QueuePairQuarantine> quarantine_;
  const absl::Duration tick_;
  const std::shared_ptr<Nudge> nudge_;
  RefusalLog refusals_{"verbs: refused a dial"};

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Expected> expected_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<VerbsQueueCore>> queues_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace shoal::transport
