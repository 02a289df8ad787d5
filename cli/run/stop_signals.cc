#include "cli/run/stop_signals.h"

#include <time.h>

#include <atomic>
#include <cstdint>

namespace shoal::cli {
namespace {

constexpr int64_t kSecondCountsAfterNs = 2'000'000'000;

// Signal handlers can reach nothing but globals; without locks, these may be touched there.
std::atomic<int> stop_count = 0;
std::atomic<int> last_signal = 0;
std::atomic<int64_t> first_ns = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

void CountSignal(int number) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  int none = 0;
  if (stop_count.compare_exchange_strong(none, 1)) {
    first_ns = now_ns;
    last_signal = number;
  } else if (number == SIGINT && now_ns - first_ns >= kSecondCountsAfterNs) {
    stop_count = 2;
    last_signal = number;
  }
}

}  // namespace

StopSignals::StopSignals() {
  stop_count = 0;
  struct sigaction action {};
  action.sa_handler = CountSignal;
  sigfillset(&action.sa_mask);  // one at a time
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &before_[i]);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
}

bool StopSignals::Came() { return stop_count > 0; }

int StopSignals::count() const { return stop_count; }

const char* StopSignals::reason() const {
  switch (last_signal) {
    case SIGINT:
      return "Ctrl-C";
    case SIGHUP:
      return "hang-up";
    case SIGPIPE:
      return "closed output";
    default:
      return "SIGTERM";
  }
}

}  // namespace shoal::cli
