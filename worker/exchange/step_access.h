// What a worker's step asks of the source of its weights and of the sink of its gradients, besides
// what the model does (worker/model/access/unit_access.h). There are three pairs over the service:
// the host's (ServiceSource, ServiceSink), whose memory the model computes in itself, a device's
// (DeviceSource, DeviceSink), which copies, and one (CollectiveSource, CollectiveSink) where
// workers each have a shard from the service and exchange the rest among themselves.
//
// A step is BeginStep, the model's calls, and EndStep, whether it went well or not; the client's
// BeginStep comes before. All from the compute thread, Cancel from any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "worker/backend/backend.h"
#include "worker/model/access/unit_access.h"

namespace shoal::worker {

class StepWeights : public UnitSource {
 public:
  // The units that the step gets, in this order.
  virtual void BeginStep(std::span<const int> uses) = 0;
  // More, which were not known when the step began.
  virtual void AddUses(std::span<const int> uses) = 0;
  // Waits until the client is not called any more. An error is that of memory which is still in
  // use: there must be no other step.
  virtual absl::Status EndStep() = 0;
  // The step at hand and every later one fail with this.
  virtual void Cancel(const absl::Status& why) = 0;
};

// What Accumulator gives, of a sink over a device that tells by Gradient what is empty: zeroed
// there.
inline absl::StatusOr<std::span<float>> AsAccumulator(const absl::StatusOr<UnitGradient>& gradient,
                                                      Stream& compute) {
  if (!gradient.ok()) {
    return gradient.status();
  }
  if (gradient->empty) {
    compute.Zero(gradient->sums.data(), static_cast<int64_t>(gradient->sums.size_bytes()));
  }
  return gradient->sums;
}

// Why nothing goes on any more, once there is a reason: the first one stays for good. Thread-safe.
class LastingStatus {
 public:
  // `why` stays where it is not OK and the first. What stays, OK where nothing does.
  absl::Status Update(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_.Update(why);
    return status_;
  }
  absl::Status Get() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Waits until nothing on the stream is under way, so that what its copies read and write may be
// used for something else. A copy that failed was told to whoever wanted it and is forgotten, for
// the next attempt starts anew. DeadlineExceeded, which calls them `copies`: they are still under
// way after `timeout`.
inline absl::Status FinishCopies(Stream& stream, absl::Duration timeout, std::string_view copies) {
  if (!stream.Record()->WaitDone(timeout)) {
    return DeadlineExceeded("{}: not done within {}", copies, absl::FormatDuration(timeout));
  }
  stream.Synchronize().IgnoreError();
  return absl::OkStatus();
}

class StepGradients : public GradientSink {
 public:
  // How many microbatches the step has, where that is known; where it is not, PushRest follows the
  // last one.
  virtual void BeginStep(std::optional<int64_t> microbatches) = 0;
  // Pushes what push per step has kept back.
  virtual absl::Status PushRest() = 0;
  // Waits until the client has all gradients that are due, so that it can finish.
  virtual absl::Status Flush() = 0;
  // As StepWeights's.
  virtual absl::Status EndStep() = 0;
  virtual void Cancel(const absl::Status& why) = 0;
};

}  // namespace shoal::worker
