// Draws microbatches from the coordinator one by one (plan.assignment: dynamic). The compute thread
// asks shortly before it is done with the current one, and the drawer's thread makes the call:
// asked earlier, the microbatch would be lost to a worker that is free sooner.
//
// Retries transient failures for `timeout`, under the same number, which the coordinator answers
// the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "proto/coordinator.pb.h"

namespace shoal::worker {

class MicrobatchDrawer {
 public:
  using Draw = std::function<absl::StatusOr<proto::DrawMicrobatchReply>(
      const proto::DrawMicrobatchRequest&)>;
  MicrobatchDrawer(Draw draw, uint64_t incarnation, Clock& clock,
                   absl::Duration timeout = absl::Seconds(10));
  ~MicrobatchDrawer();
  MicrobatchDrawer(const MicrobatchDrawer&) = delete;
  MicrobatchDrawer& operator=(const MicrobatchDrawer&) = delete;

  void BeginStep(const proto::StepWork& work);
  // Whether one may be asked for: none is requested already, and the last time one was left.
  bool MayAsk() const;
  // Asks for the next, for which this worker will be free in about `ahead`, and tells what it is
  // done with since the last time. Does nothing unless it may.
  void Ask(absl::Duration ahead, std::span<const proto::PackResult> done);
  // Returns the one asked for last; nullopt: none is left for this worker.
  absl::StatusOr<std::optional<proto::MicrobatchWork>> Take();
  // How long before it is needed to ask for one.
  absl::Duration lead() const;

 private:
  void Run();
  absl::StatusOr<proto::DrawMicrobatchReply> Call(const proto::DrawMicrobatchRequest& request);

  const Draw draw_;
  const uint64_t incarnation_;
  Clock& clock_;
  const absl::Duration timeout_;

  mutable absl::Mutex mutex_;
  proto::DrawMicrobatchRequest request_ ABSL_GUARDED_BY(mutex_);  // the latest
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;  // request_ is sent or due, not taken yet
  bool due_ ABSL_GUARDED_BY(mutex_) = false;    // the thread must make the call
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;
  bool exhausted_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::StatusOr<proto::DrawMicrobatchReply>> answer_ ABSL_GUARDED_BY(mutex_);
  absl::Duration latency_ ABSL_GUARDED_BY(mutex_) = absl::Milliseconds(1);  // smoothed
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
