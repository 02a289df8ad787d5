// The newest lines that this process has logged, for who shows them elsewhere (`shoal logs`).
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shoal {

struct KeptLine {
  absl::Time time;
  std::string level;  // "info"
  std::string message;
};

class KeptLines {
 public:
  static constexpr size_t kMaxLines = 256;   // between two calls of Take
  static constexpr size_t kMaxBytes = 2048;  // of a message

  // Drops the oldest where there is no room, and the end of a message that is too long.
  void Add(KeptLine line);
  // Returns those since the last call, oldest first; a line of its own says how many were dropped.
  std::vector<KeptLine> Take();

 private:
  absl::Mutex mutex_;
  std::deque<KeptLine> lines_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Of this process, once InitLogging was told to keep them; without, they stay none.
KeptLines& ProcessLines();

}  // namespace shoal
