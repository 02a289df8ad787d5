// What the parts of a CUDA device share: its GPU, events to use again, its streams, and how its
// time maps to the host's. Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/gpu/gpus.h"

namespace shoal::gpu {

// Longer than any work that is put on a stream takes, and than it may wait there for that of other
// workers, which is given up after ten minutes.
inline constexpr absl::Duration kWorkTimeout = absl::Minutes(15);

// A place in a stream's order: done when all that was put there before it is.
struct Mark {
  cudaEvent_t event = nullptr;    // recorded there; null: none could be, and it is done
  cudaStream_t stream = nullptr;  // when this stream is once found with nothing to do; null: now
};

class CudaContext {
 public:
  // Everything that was on the device's streams at some time.
  using Fence = std::vector<Mark>;

  static absl::StatusOr<std::unique_ptr<CudaContext>> Create(int gpu, Clock& clock);
  // All streams are gone.
  ~CudaContext();

  const GpuDescription& gpu() const { return gpu_; }
  Clock& clock() const { return clock_; }

  // Makes the GPU the calling thread's.
  absl::Status MakeCurrent() const;
  // ToStatus of this GPU.
  absl::Status Check(cudaError_t error, std::string_view what) const;

  absl::StatusOr<cudaStream_t> NewStream(bool copies);
  void DestroyStream(cudaStream_t stream);

  // Events that tell the time and that a waiting thread sleeps for.
  absl::StatusOr<cudaEvent_t> TakeEvent() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveEvent(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mutex_);

  // The stream's place now. Where no event can be had or recorded `failure` says why; what is under
  // way there is waited for all the same.
  Mark PutMark(cudaStream_t stream, absl::Status& failure) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveMark(const Mark& mark) ABSL_LOCKS_EXCLUDED(mutex_);

  // Looks until the mark is done or the time is up, and sleeps in between; at once with a timeout
  // of zero. cudaErrorNotReady: it is not done; other errors are the GPU's, and nothing is under
  // way then.
  cudaError_t LookUntil(const Mark& mark, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same until a mark is done, or all that is on a stream. `what` it is that does not end, for
  // DeadlineExceeded.
  absl::Status Await(const Mark& mark, std::string_view what, absl::Duration timeout = kWorkTimeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Synchronize(cudaStream_t stream, std::string_view what,
                           absl::Duration timeout = kWorkTimeout);

  // A GPU that fails has nothing to wait for: its fences are done.
  Fence PutFence() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether it is done; it is empty then.
  bool IsDone(Fence& fence);
  absl::Status Wait(Fence& fence);

  // When an event of TakeEvent was done, which it is.
  absl::Time TimeOf(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(clock_mutex_);

 private:
  CudaContext(GpuDescription gpu, Clock& clock) : gpu_(std::move(gpu)), clock_(clock) {}
  absl::Status NoteTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(clock_mutex_);
  // Milliseconds; below zero where it was before the base.
  absl::StatusOr<float> SinceBase(cudaEvent_t event) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(clock_mutex_);
  absl::StatusOr<cudaEvent_t> NewEvent() const;
  absl::StatusOr<cudaEvent_t> TakeEventLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Mark PutMarkLocked(cudaStream_t stream, absl::Status& failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t Look(const Mark& mark) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a wait for `what`, by the last look.
  absl::Status Outcome(cudaError_t error, std::string_view what, absl::Duration timeout) const;

  const GpuDescription gpu_;
  Clock& clock_;

  absl::Mutex mutex_;
  std::set<cudaStream_t> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> free_events_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex clock_mutex_;
  cudaStream_t clock_stream_ ABSL_GUARDED_BY(clock_mutex_) = nullptr;
  cudaEvent_t base_event_ ABSL_GUARDED_BY(clock_mutex_) = nullptr;
  absl::Time base_time_ ABSL_GUARDED_BY(clock_mutex_);
  bool clock_failed_ ABSL_GUARDED_BY(clock_mutex_) = false;  // and it was told
};

}  // namespace shoal::gpu
