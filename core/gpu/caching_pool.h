// Memory taken from the driver in large reservations and given out in pieces. What is given back is
// kept and used again, so that in steady state nothing is asked of the driver, whose calls take
// milliseconds and wait for the GPU.
//
// Pieces below kLargeBytes lie together in reservations of kSharedBytes, each in the smallest hole
// that takes it, in the oldest reservation that has one; so the newest empty again. A larger piece
// has a reservation of its own, used again for pieces that need at least kLeastUse of it. So
// nothing is lost between large pieces, and what is lost to small ones is at most what they once
// took.
//
// Where the budget or the driver has no more, empty reservations go back to the driver first. A
// piece that is given back while work may still use it waits for a fence before it is used again;
// where room is short, whoever takes a piece waits for that.
//
// Threads: any.
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
  // Of reservations: the driver's own.
  static constexpr int64_t kGranule = int64_t{2} << 20;
  // Of pieces.
  static constexpr int64_t kAlignment = 256;

  // `name` and `advice`, what to do where the budget does not suffice, are for messages; budget 0:
  // none.
  CachingPool(CudaContext& context, Kind kind, std::string name, std::string advice,
              int64_t budget_bytes);
  // Everything has been given back.
  ~CachingPool();

  // `bytes` > 0. ResourceExhausted where the budget, rounded up to a granule, or the driver has no
  // room.
  absl::StatusOr<std::byte*> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(std::byte* piece, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& name() const { return name_; }
  int64_t budget_bytes() const { return budget_bytes_; }
  // Sums of what was asked for and is not given back.
  int64_t allocated_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t peak_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What is taken from the driver.
  int64_t reserved_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Reservation {
    uint64_t number = 0;  // of its making
    int64_t bytes = 0;
    bool large = false;
    RangeAllocator pieces;
  };
  struct Leaving {
    std::byte* piece;
    CudaContext::Fence fence;
  };

  std::byte* TakeKept(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A new reservation with room for `bytes`; null where the budget has none, or the driver.
  absl::StatusOr<std::byte*> TakeNew(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes pieces whose work is done free; `wait`: all of them.
  absl::Status Collect(bool wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives empty reservations back to the driver.
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
  std::map<std::byte*, Reservation> reservations_ ABSL_GUARDED_BY(mutex_);  // by begin
  std::map<uint64_t, std::byte*> shared_ ABSL_GUARDED_BY(mutex_);           // by number
  std::list<Leaving> leaving_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::gpu
