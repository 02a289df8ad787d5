// Warns of refused dials and calls at a limited rate, so that peers cannot fill the log.
#pragma once

#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shoal {

class RefusalLog {
 public:
  // `what`, a constant: what was refused, "tcp: refused a dial".
  explicit RefusalLog(std::string_view what) : what_(what) {}
  // Logs at most one line a second; the next line says how many were left out.
  void Refused(const absl::Status& why);

 private:
  const std::string_view what_;
  absl::Mutex mutex_;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal
