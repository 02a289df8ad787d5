// Discrete-event time for the simulation: runs functions sequentially in order of their time (ties
// in order of scheduling), with the clock at the time of the running one. A run is a function of
// its seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/random.h"

namespace shoal::server::testing {

class EventLoop {
 public:
  explicit EventLoop(uint64_t seed) : random_(seed) {}

  ManualClock& clock() { return clock_; }
  Random& random() { return random_; }

  void After(absl::Duration delay, std::function<void()> work) {
    queue_.emplace(std::make_pair(clock_.Now() + delay, ++sequence_), std::move(work));
  }
  // Between 0.1 and 3 ms: a message or a short computation.
  absl::Duration ShortDelay() { return absl::Microseconds(random_.Between(100, 3000)); }

  absl::Time NextTime() const {
    return queue_.empty() ? absl::InfiniteFuture() : queue_.begin()->first.first;
  }
  void AdvanceTo(absl::Time time) {
    if (time > clock_.Now()) {
      clock_.Advance(time - clock_.Now());
    }
  }
  // Runs the next function; there must be one.
  void RunNext() {
    AdvanceTo(NextTime());
    auto work = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    work();
  }

 private:
  ManualClock clock_;
  Random random_;
  int64_t sequence_ = 0;
  std::map<std::pair<absl::Time, int64_t>, std::function<void()>> queue_;
};

}  // namespace shoal::server::testing
