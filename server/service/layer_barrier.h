// Counts workers that wait for each other at layers, as in collective training
// (train.synchronization: layer): the baseline for on-demand communication. BeginAttempt names who
// takes part; the first server of the shard map counts. core/transport/data_layout.h describes the
// doorbells.
//
// Workers arrive at an attempt's barriers in the same order, so a count for each worker suffices: a
// barrier is over when the smallest count has passed it. Nothing waits here: a lost worker ends the
// attempt through the coordinator.
//
// Thread-safe. Returns rings for the caller to make without the lock: they may overtake each other,
// which is harmless since counts only grow.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace shoal::server {

class LayerBarrier {
 public:
  struct Ring {
    uint64_t incarnation = 0;
    uint32_t immediate = 0;

    bool operator==(const Ring&) const = default;
  };

  // Starts counts at 0, and tells workers of the attempt before that it is over.
  std::vector<Ring> Begin(int64_t step, int64_t attempt, std::vector<uint64_t> workers);
  // Takes that worker's doorbell. Ignores one of another attempt, or of a worker that does not take
  // part; answers one that says nothing new to that worker alone.
  std::vector<Ring> OnDoorbell(uint64_t incarnation, uint32_t immediate);

 private:
  absl::Mutex mutex_;
  uint32_t tag_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> arrived_ ABSL_GUARDED_BY(mutex_);  // by worker: barriers it has arrived at
  uint32_t over_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::server
