// Takes memory from the driver in large reservations and hands it out in pieces. Freed pieces are
// kept and reused, so that in steady state the driver, whose calls take milliseconds and wait for
// the GPU, is not called at all. Thread-safe.
//
// - Pieces below kLargeBytes share reservations of kSharedBytes. Each takes the smallest hole that
//   fits, in the oldest reservation that has one, so the newest reservations become empty again.
// - A larger piece has its own reservation, reused for pieces that need at least kLeastUse of it.
//   So nothing is lost between large pieces, and at most what small pieces once took is lost to
//   them.
// - If the budget or the driver has no more, empty reservations are returned to the driver first.
// - A piece freed while work may still use it waits for a fence before it is reused; if room is
//   short, Take waits for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/memory/range_allocator.h"
#include "core/gpu/cuda_context.h"

namespace shoal::gpu {

class CachingPool {
 public:
  enum class Kind : uint8_t { kDevice, kPinnedHost };

  static constexpr int64_t kLargeBytes = int64_t{16} << 20;
  static constexpr int64_t kSharedBytes = int64_t{64} << 20;
  static constexpr double kLeastUse = 0.8;
  // Granule of reservations: the driver's own.
  static constexpr int64_t kGranule = int64_t{2} << 20;
  // Alignment of pieces.
  static constexpr int64_t kAlignment = 256;

  // `name` and `advice` (what to do if the budget does not suffice) are for messages; budget 0:
  // none.
  CachingPool(CudaContext& context, Kind kind, std::string name, std::string advice,
              int64_t budget_bytes);
  // All pieces must have been freed.
  ~CachingPool();

  // `bytes` > 0. ResourceExhausted if the budget, rounded up to a granule, or the driver has no
  // room.
  absl::StatusOr<std::byte*> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(std::byte* piece, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& name() const { return name_; }
  int64_t budget_bytes() const { return budget_bytes_; }
  // Sum of what was asked for and has not been freed.
  int64_t allocated_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t peak_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Memory taken from the driver.
  int64_t reserved_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Reservation {
    uint64_t number = 0;  // order of creation
    int64_t bytes = 0;
    bool large = false;
    RangeAllocator pieces;
  };
  struct Leaving {
    std::byte* piece;
    CudaContext::Fence fence;
  };

  std::byte* TakeKept(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a reservation with room for `bytes`; null if the budget or the driver has none.
  absl::StatusOr<std::byte*> TakeNew(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees pieces whose work is done; `wait`: all of them.
  absl::Status Collect(bool wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns empty reservations to the driver.
  absl::Status ReturnEmpty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBack(std::byte* piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  cudaError_t Reserve(void** data, int64_t bytes) const;
  cudaError_t Return(void* data) const;

  CudaContext& context_;
  const Kind kind_;
  const std::string name_;
  const std::string advice_;
  const int64_t budget_bytes_;
  const int64_t most_reserved_;

  mutable absl::Mutex mutex_;
  std::map<std::byte*, Reservation> reservations_ ABSL_GUARDED_BY(mutex_);  // by start
  std::map<uint64_t, std::byte*> shared_ ABSL_GUARDED_BY(mutex_);           // by number
  std::list<Leaving> leaving_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::gpu
