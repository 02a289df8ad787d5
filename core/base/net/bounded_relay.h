// Stands between who connects and who serves, and passes on only so much of a connection: where the
// one that serves would keep all that comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/file.h"

namespace shoal {

class BoundedRelay {
 public:
  // What a connection may send and how long it may take; how many there may be. One beyond any of
  // them is closed.
  struct Limits {
    int64_t bytes = 0;
    absl::Duration time;
    size_t connections = 0;
  };
  static absl::StatusOr<std::unique_ptr<BoundedRelay>> Start(const Limits& limits);
  ~BoundedRelay();  // closes all
  BoundedRelay(const BoundedRelay&) = delete;
  BoundedRelay& operator=(const BoundedRelay&) = delete;

  // Returns the nonblocking socket to be served instead of that of a peer. Not valid where that is
  // closed.
  UniqueFd Add(UniqueFd peer) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Pair {
    UniqueFd peer;
    UniqueFd server;
    int64_t left = 0;  // of the peer's bytes
    absl::Time ends;
  };

  BoundedRelay(const Limits& limits, UniqueFd wake);
  void Run();
  // False once it is over.
  static bool Pass(Pair& pair);

  const Limits limits_;
  const UniqueFd wake_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Pair> pairs_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace shoal
