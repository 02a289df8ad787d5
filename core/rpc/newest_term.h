// The newest term that a process has heard of. A term is one life of a coordinator on its durable
// state, counted from 1: what comes from an earlier life, which may still run and not know of the
// later one, is refused. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shoal::rpc {

class NewestTerm {
 public:
  // Aborted, naming `what` came, for a term that is lower than the newest; a higher one is the
  // newest from then on.
  absl::Status Admit(int64_t term, std::string_view what);
  // As for a process that begins: for another coordinator.
  void Forget();

 private:
  absl::Mutex mutex_;
  int64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::rpc
