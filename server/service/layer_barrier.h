// Where workers wait for each other at layers, as collective training makes them
// (train.synchronization: layer): the baseline that on-demand communication is measured against.
// The coordinator names in BeginAttempt who takes part; the first server of the shard map counts.
// core/transport/data_layout.h describes the doorbells.
//
// Workers arrive at the barriers of an attempt in the same order, so one count for each worker says
// all, and a barrier is over when the smallest count has passed it. Nobody waits here: a worker
// that is lost ends the attempt through the coordinator.
//
// Thread-safe. Rings are given back to the caller, to be made without the lock held: they may then
// overtake each other, which is harmless since counts only grow.
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

  // Counts start at 0. Whoever took part in the attempt before is told that it is over.
  std::vector<Ring> Begin(int64_t step, int64_t attempt, std::vector<uint64_t> workers);
  // That worker's doorbell. One of another attempt, or of somebody who does not take part, is
  // ignored; one that says nothing new is answered to that worker alone.
  std::vector<Ring> OnDoorbell(uint64_t incarnation, uint32_t immediate);

 private:
  absl::Mutex mutex_;
  uint32_t tag_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> arrived_ ABSL_GUARDED_BY(mutex_);  // by worker: barriers it has arrived at
  uint32_t over_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::server
