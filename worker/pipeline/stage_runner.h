// Executes one stage of a pipeline, step after step: the list of core/plan/schedule/schedule.h as
// written, on any backend and over any links. One runner per job. Call RunStep from the compute
// thread; all stages call it with the same schedule.
//
// The calling thread walks the list and computes. Copies run concurrently on copy streams, messages
// on the links; the walk waits only where the rules of core/plan/schedule/schedule.h say. On a
// device that computes asynchronously the thread enqueues work on the compute stream ahead of time,
// and that stream waits for copies (and, through AttachedLinks, for messages to be on the
// device); the thread waits for messages to arrive, and at the end until everything is done.
//
// Before anything runs the schedule is checked (so it completes if neighbours execute it too) and
// the list's memory is replayed (so it fits, and nothing is allocated while it runs).
//
// Each wait has a deadline and names what it waited for. What the thread waits for is a phase of
// the owner's clock (kTransferWait, kNeighbourWait; a source that waits for weights enters kGetWait
// itself), and so are forward and backward.
//
// Failure: returns the step's first error, which names stage and action, closes the links, so that
// neighbours fail too instead of waiting, and frees all memory of the step. The next attempt needs
// new links. Threads: Cancel may be called from any, everything else from one. Ownership:
// everything passed in the options must outlive the runner, and a step's arguments the call of
// RunStep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/time_kind_clock.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_queues.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"
#include "worker/model/stage_model.h"
#include "worker/pipeline/links/stage_links.h"
#include "worker/pipeline/stage_pools.h"
#include "worker/pipeline/stage_report.h"

namespace shoal::worker {

struct StageRunnerOptions {
  int stage = 0;
  StageModel* model = nullptr;
  Device* device = nullptr;
  Stream* compute = nullptr;  // of the device on which the model works
  Memory* host = nullptr;     // of the device, for what is offloaded
  TimeKindClock* time_kinds = nullptr;
  Clock* clock = &RealClock();
  // Runs an offload and a reload concurrently, on separate copy streams.
  bool duplex = false;
  // Fills freed memory with NaN.
  bool poison = false;
  // Of each wait. A neighbour may be in the middle of a long backward.
  absl::Duration wait_timeout = absl::Seconds(60);
  // The same for all stages: messages go from device to device through these, and a step's links
  // carry only words about them (communicator_links.h). Null: the links carry messages.
  Collectives* collectives = nullptr;
  // The same for all stages: messages may lie on devices, also if links carry them
  // (StageLinks::OnDevice).
  bool links_on_device = false;
  // Whether the current step goes on, for those; called from any thread. May be empty.
  std::function<absl::Status()> check = nullptr;
};

struct StageStep {
  int64_t step = 0;
  int64_t attempt = 0;
  const plan::Schedule* schedule = nullptr;
  std::span<const PackedBatch> microbatches;  // as many as the schedule has
  std::vector<int64_t> packs;                 // their numbers, for the sink; empty: from 0
  double loss_scale = 1;
  UnitSource* source = nullptr;
  GradientSink* sink = nullptr;
  StageLinks* links = nullptr;
  bool record_spans = false;
};

class StageRunner {
 public:
  explicit StageRunner(const StageRunnerOptions& options);
  ~StageRunner();

  absl::StatusOr<StageReport> RunStep(const StageStep& step);
  // Whether links to a neighbour were closed before the last step failed: so that may be why.
  bool lost_neighbour() const { return lost_neighbour_; }
  // Makes the current step fail at once, and every later one.
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call when no step follows: releases the neighbours.
  void Disconnect();

  // Returns what a step's links carry: its messages, or words about them.
  std::vector<plan::MessageQueue> LinkQueues(const plan::Schedule& schedule) const;

  const StagePools& pools() const { return pools_; }

 private:
  // A schedule that was checked, and what follows from it.
  struct Checked {
    plan::Schedule schedule;
    std::vector<plan::MessageQueue> queues;
  };

  absl::StatusOr<StageReport> Run(StageStep step);
  absl::Status Check(const StageStep& step);
  std::vector<plan::MessageQueue> Queues(const plan::Schedule& schedule) const;
  std::unique_ptr<AttachedLinks> MakeDeviceLinks();
  absl::StatusOr<std::vector<int64_t>> MessageBytes(const plan::ScheduleShape& shape) const;
  absl::Status cancelled() const ABSL_LOCKS_EXCLUDED(mutex_);

  const StageRunnerOptions options_;
  const std::unique_ptr<Stream> offloads_;
  const std::unique_ptr<Stream> own_reloads_;  // duplex
  StagePools pools_;
  const std::unique_ptr<AttachedLinks> device_links_;  // if the device is asynchronous
  std::optional<Checked> checked_;
  bool lost_neighbour_ = false;

  mutable absl::Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  StageLinks* links_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the current step
};

}  // namespace shoal::worker
