#include "core/base/threads/lock_order.h"

#include "absl/synchronization/mutex.h"

namespace shoal {

void StopCheckingLockOrder() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace shoal
