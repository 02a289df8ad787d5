// What a worker's step asks of the source of its weights and of the sink of its gradients, besides
// what the model does (worker/model/access/unit_access.h). Three pairs work over the service:
// - ServiceSource, ServiceSink: the host's, whose memory the model computes in;
// - DeviceSource, DeviceSink: a device's, which copy;
// - CollectiveSource, CollectiveSink: workers get a shard each and exchange the rest.
//
// A step is BeginStep, the model's calls, and EndStep, whether it went well or not; the client's
// BeginStep comes before. All from the compute thread, Cancel from any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/parameter_client.h"
#include "core/base/status.h"
#include "core/base/time_kind_clock.h"
#include "core/model/model_spec.h"
#include "worker/backend/backend.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/model/access/unit_access.h"

namespace shoal::worker {

// What the source and the sink of a device work with. All of it must outlive them.
struct StepEnvironment {
  std::vector<plan::UnitSpec> units;
  Device* device = nullptr;
  Stream* compute = nullptr;  // of the model's work
  Memory* host = nullptr;     // which the device's copies reach at full speed
  client::ParameterClient* client = nullptr;
  LayerBarriers* barriers = nullptr;
  TimeKindClock* time_kinds = nullptr;
};

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

// A gradient of the unit is asked for, the first one when backward begins.
inline void EnterGradient(TimeKindClock& time_kinds, int unit) {
  time_kinds.AtUnit(unit);
  if (time_kinds.kind() == TimeKind::kForward) {
    time_kinds.Enter(TimeKind::kBackward);
  }
}

// Accumulator of a device's sink, from its Gradient: zeroes on the device what is empty.
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

// The first reason why nothing goes on. Thread-safe.
class LastingStatus {
 public:
  // Keeps `why` if it is the first that is not OK. Returns the one kept, or OK.
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

// Waits until the stream is idle, so that what its copies read and write may be reused. Forgets a
// copy that failed: its user was told. DeadlineExceeded, naming `copies`, if they are still under
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
