// What a worker's step needs of the source of its weights and of the sink of its gradients, besides
// the model's calls (worker/model/access/unit_access.h). Three pairs work over the service:
// - ServiceSource, ServiceSink: for the host, whose memory the model computes in;
// - DeviceSource, DeviceSink: for a device, with copies or direct transfers;
// - CollectiveSource, CollectiveSink: workers get a shard each and exchange the rest.
//
// A step is BeginStep, the model's calls, and EndStep, also after a failure; call the client's
// BeginStep before. All from the compute thread, except Cancel: any thread.
#pragma once

#include <cstdint>
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
#include "worker/exchange/push_rule.h"
#include "worker/model/access/unit_access.h"

namespace shoal::worker {

// Used by a device's source and sink; all must outlive them.
struct StepEnvironment {
  std::vector<plan::UnitSpec> units;
  Device* device = nullptr;
  Stream* compute = nullptr;  // of the model's work
  Memory* host = nullptr;     // to and from which the device copies at full speed
  client::ParameterClient* client = nullptr;
  LayerBarriers* barriers = nullptr;
  TimeKindClock* time_kinds = nullptr;
};

class StepWeights : public UnitSource {
 public:
  // `uses`: the step's units in order of use.
  virtual void BeginStep(std::span<const int> uses) = 0;
  // Adds uses that were unknown when the step began.
  virtual void AddUses(std::span<const int> uses) = 0;
  // Ends all calls to the client. An error means that memory is still in use: there must be no
  // further step.
  virtual absl::Status EndStep() = 0;
  // Fails the current step and all later ones with this.
  virtual void Cancel(const absl::Status& why) = 0;
};

// Call when the backward has come to the unit; the first one begins the backward pass.
inline void EnterGradient(TimeKindClock& time_kinds, int unit) {
  time_kinds.AtUnit(unit);
  if (time_kinds.kind() == TimeKind::kForward) {
    time_kinds.Enter(TimeKind::kBackward);
  }
}

// Implements a device sink's Accumulator by its Gradient: zeroes it on the device if empty.
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

// The first error that lasts. Thread-safe.
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

// Waits until the stream is idle, so that its copies' memory may be reused. Ignores failed copies,
// which were reported. DeadlineExceeded, naming `copies`, if they take longer than `timeout`.
inline absl::Status FinishCopies(Stream& stream, absl::Duration timeout, std::string_view copies) {
  if (!stream.Record()->WaitDone(timeout)) {
    return DeadlineExceeded("{}: not done within {}", copies, absl::FormatDuration(timeout));
  }
  stream.Synchronize().IgnoreError();
  return absl::OkStatus();
}

class StepGradients : public GradientSink {
 public:
  // If the number of microbatches is unknown, call PushRest after the last one. Before each pack's
  // calls AtPack must name it.
  virtual void BeginStep(const PushWork& work) = 0;
  // Pushes what push per step has kept.
  virtual absl::Status PushRest() = 0;
  // Blocks until the client has all due gradients, so that it can finish.
  virtual absl::Status Flush() = 0;
  // Whether the servers have acknowledged the whole pack. False where packs are summed first.
  virtual bool Acknowledged(int64_t pack) = 0;
  // See StepWeights.
  virtual absl::Status EndStep() = 0;
  virtual void Cancel(const absl::Status& why) = 0;
};

}  // namespace shoal::worker
