// What the parts of a CUDA device share: its GPU, reusable events, its streams, and how its time
// maps to the host's. Thread-safe.
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

// Longer than any work on a stream takes, including its waits for other workers, which are given up
// after ten minutes.
inline constexpr absl::Duration kWorkTimeout = absl::Minutes(15);

// A place in a stream's order: done when everything put there before it is done.
struct Mark {
  cudaEvent_t event = nullptr;    // recorded there; null: none could be, and it is done
  cudaStream_t stream = nullptr;  // instead: done once this stream is found idle; null: done now
};

class CudaContext {
 public:
  // The work that was on all of the device's streams at some time.
  using Fence = std::vector<Mark>;

  static absl::StatusOr<std::unique_ptr<CudaContext>> Create(int gpu, Clock& clock);
  // All streams must have been destroyed.
  ~CudaContext();

  const GpuDescription& gpu() const { return gpu_; }
  Clock& clock() const { return clock_; }

  // Makes the GPU current in the calling thread.
  absl::Status MakeCurrent() const;
  // ToStatus for this GPU.
  absl::Status Check(cudaError_t error, std::string_view what) const;

  absl::StatusOr<cudaStream_t> NewStream(bool copies);
  void DestroyStream(cudaStream_t stream);

  // Returns an event that records the time and on which a waiting thread sleeps.
  absl::StatusOr<cudaEvent_t> TakeEvent() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveEvent(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mutex_);

  // Marks the stream's current place. If no event can be made or recorded, `failure` says why; the
  // work there is waited for nevertheless.
  Mark PutMark(cudaStream_t stream, absl::Status& failure) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveMark(const Mark& mark) ABSL_LOCKS_EXCLUDED(mutex_);

  // Polls until the mark is done or the time is up, sleeping in between; returns at once with a
  // timeout of zero. cudaErrorNotReady: not done; other errors are the GPU's, and nothing runs
  // then.
  cudaError_t LookUntil(const Mark& mark, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Same as above, until a mark is done, or everything on a stream. `what` names in
  // DeadlineExceeded what does not end.
  absl::Status Await(const Mark& mark, std::string_view what, absl::Duration timeout = kWorkTimeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Synchronize(cudaStream_t stream, std::string_view what,
                           absl::Duration timeout = kWorkTimeout);

  // On a GPU that has failed there is nothing to wait for: its fences are done.
  Fence PutFence() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether it is done; it is empty then.
  bool IsDone(Fence& fence);
  absl::Status Wait(Fence& fence);

  // Returns when an event of TakeEvent was done, which it must be.
  absl::Time TimeOf(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(clock_mutex_);

 private:
  CudaContext(GpuDescription gpu, Clock& clock) : gpu_(std::move(gpu)), clock_(clock) {}
  absl::Status NoteTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(clock_mutex_);
  // Milliseconds; negative if it was before the base.
  absl::StatusOr<float> SinceBase(cudaEvent_t event) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(clock_mutex_);
  absl::StatusOr<cudaEvent_t> NewEvent() const;
  absl::StatusOr<cudaEvent_t> TakeEventLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Mark PutMarkLocked(cudaStream_t stream, absl::Status& failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t Look(const Mark& mark) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the status of a wait for `what`, from the last look.
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
  bool clock_failed_ ABSL_GUARDED_BY(clock_mutex_) = false;  // and it has been logged
};

}  // namespace shoal::gpu
