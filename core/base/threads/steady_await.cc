#include "core/base/threads/steady_await.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/threads/steady_condition.h"

namespace shoal {
namespace {

// How soon a mutex that was held when a wait on it was over is tried again.
constexpr absl::Duration kTryAgain = absl::Milliseconds(1);

struct LimitedWait {
  absl::Mutex* const mutex;
  bool over = false;  // guarded by `mutex`
};

// The waits under way that have a limit. Locked after the mutexes of the waits; its thread, which
// locks them the other way round, tries only.
class LimitedWaits {
 public:
  LimitedWaits() {
    std::thread([this] { Run(); }).detach();
  }

  void Add(absl::Time deadline, LimitedWait* wait) {
    absl::MutexLock lock(&mutex_);
    waits_.emplace(deadline, wait);
    if (deadline < look_at_) {
      changed_.SignalAll();
    }
  }

  // The wait may be freed afterwards, and its mutex with it.
  void Remove(absl::Time deadline, LimitedWait* wait) {
    absl::MutexLock lock(&mutex_);
    waits_.erase({deadline, wait});
  }

 private:
  [[noreturn]] void Run() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      const absl::Time now = RealClock().Now();
      look_at_ = EndThoseOver(now);
      changed_.Wait(&mutex_, look_at_ - now);
    }
  }

  // Returns when to look again.
  absl::Time EndThoseOver(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Time again = absl::InfiniteFuture();
    auto it = waits_.begin();
    while (it != waits_.end() && it->first <= now) {
      LimitedWait* const wait = it->second;
      if (!wait->mutex->TryLock()) {
        again = now + kTryAgain;
        ++it;
        continue;
      }
      wait->over = true;
      wait->mutex->Unlock();  // its thread may free it now
      it = waits_.erase(it);
    }
    return it == waits_.end() ? again : std::min(again, it->first);
  }

  absl::Mutex mutex_;
  SteadyCondition changed_;
  std::set<std::pair<absl::Time, LimitedWait*>> waits_ ABSL_GUARDED_BY(mutex_);
  absl::Time look_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

LimitedWaits& TheWaits() {
  static auto& waits = *new LimitedWaits;  // never freed: threads wait until the process ends
  return waits;
}

}  // namespace

bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    mutex->Await(condition);
    return true;
  }
  bool holds = condition.Eval();
  if (holds || deadline <= RealClock().Now()) {
    return holds;
  }
  LimitedWait wait{mutex};
  TheWaits().Add(deadline, &wait);
  auto done = [&] {
    holds = condition.Eval();
    return holds || wait.over;
  };
  mutex->Await(absl::Condition(&done));
  if (!wait.over) {
    TheWaits().Remove(deadline, &wait);
  }
  return holds;
}

bool AwaitFor(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration limit) {
  return AwaitUntil(mutex, condition, RealClock().Now() + limit);
}

}  // namespace shoal
