// Discrete-event time for the simulation: runs functions one at a time in order of their time (ties
// in order of scheduling), with the clock at the time of the running one. A run is a function of
// its seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace shoal::simulation {

// Times are nanoseconds since the simulation began.
using Nanoseconds = int64_t;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

inline Nanoseconds ToNanoseconds(absl::Duration duration) {
  return absl::ToInt64Nanoseconds(duration);
}

class EventLoop {
 public:
  Nanoseconds now() const { return now_; }
  absl::Time Now() const { return absl::UnixEpoch() + absl::Nanoseconds(now_); }

  void At(Nanoseconds time, std::function<void()> work) {
    events_.push_back({std::max(time, now_), ++sequence_, std::move(work)});
    std::push_heap(events_.begin(), events_.end());
  }
  void After(absl::Duration delay, std::function<void()> work) {
    At(now_ + ToNanoseconds(delay), std::move(work));
  }

  Nanoseconds NextTime() const { return events_.empty() ? kNever : events_.front().time; }
  // Runs the next function; there must be one.
  void RunNext() {
    std::pop_heap(events_.begin(), events_.end());
    const Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.time;
    event.work();
  }

 private:
  struct Event {
    Nanoseconds time;
    int64_t sequence;
    std::function<void()> work;
    // The first to run is the largest.
    bool operator<(const Event& other) const {
      return std::pair(other.time, other.sequence) < std::pair(time, sequence);
    }
  };

  Nanoseconds now_ = 0;
  int64_t sequence_ = 0;
  std::vector<Event> events_;
};

}  // namespace shoal::simulation
