#include "worker/pipeline/links/lent_memory.h"

#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {
absl::StatusOr<std::shared_ptr<std::byte>> LentMemory::Allocate(Device& device, int64_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory, device.AllocateShared(bytes));
  {
    absl::MutexLock lock(&count_->mutex);
    ++count_->there;
  }
  std::byte* const data = memory.get();
  return std::shared_ptr<std::byte>(
      data, [count = count_, memory = std::move(memory)](std::byte*) mutable {
        memory.reset();  // before it is counted as freed
        absl::MutexLock lock(&count->mutex);
        --count->there;
      });
}

bool LentMemory::AwaitGone(absl::Duration patience, const std::function<bool()>& stop) {
  const absl::Time deadline = RealClock().Now() + patience;
  Count& count = *count_;
  const auto gone = [&count]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(count.mutex) { return count.there == 0; };
  while (true) {
    {
      absl::MutexLock lock(&count.mutex);
      if (AwaitFor(&count.mutex, absl::Condition(&gone), kLookAgain)) {
        return true;
      }
    }
    if (RealClock().Now() >= deadline || stop()) {
      return false;
    }
  }
}

}  // namespace shoal::worker
