// Logs warnings that a peer can cause at any rate: at most one line a second, with the number left
// out.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/logging.h"

namespace shoal::server {

class SparseLog {
 public:
  // Calls `line` for the text only when it writes it.
  template <typename Line>
  void Warn(const Line& line) {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = RealClock().Now();
    if (now < next_) {
      ++left_out_;
      return;
    }
    next_ = now + absl::Seconds(1);
    if (left_out_ > 0) {
      LogWarning("{} ({} more like it since the last such line)", line(), left_out_);
    } else {
      LogWarning("{}", std::string(line()));
    }
    left_out_ = 0;
  }

 private:
  absl::Mutex mutex_;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::server
