// Computes how long a schedule takes and what memory it needs, from the execution rules of
// core/plan/schedule/schedule.h and given costs. The planner chooses by it, the timeline draws its
// spans, and measurements of the runtime are compared with it. Pure and deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

// Which copies of one device, and of its neighbour, may run concurrently.
struct CopyStreams {
  bool duplex = false;  // an offload and a reload of one device may run concurrently
  // devices 2j and 2j+1 share a PCIe switch: at most one offload and one reload of both run at a
  // time
  bool paired = false;
};

enum class Track : uint8_t { kCompute, kOffload, kReload, kSend };

struct ActionSpan {
  Action action;
  Track track = Track::kCompute;
  double begin = 0;
  double end = 0;
};

struct StageTimes {
  double begin = 0;    // of its first compute
  double end = 0;      // of its last compute
  double compute = 0;  // the sum of its compute
  // Where the time between begin and end that is not compute was spent.
  double waited_for_neighbours = 0;
  double waited_for_reloads = 0;
  double waited_for_offloads = 0;  // at releases

  int peak_activations = 0;  // (chunk, microbatch) on the device at once
  int64_t peak_device_bytes = 0;
  // On the host from the offload to the backward that waits for the reload; also by the order of
  // the list, however fast copies are.
  int peak_host_activations = 0;
  int64_t peak_host_bytes = 0;

  double LocalBubble() const { return end - begin - compute; }
};

struct ScheduleTimes {
  double makespan = 0;  // the end of the last action of any stage
  std::vector<StageTimes> stages;
  // by stage, by track, sorted by start; empty if not asked for
  std::vector<std::vector<ActionSpan>> spans;

  // Idle time of the pipeline's stages from the first action of any to the last: the largest of any
  // stage, and its share.
  double Bubble() const;
  double BubbleShare() const;
  int PeakActivations() const;  // the largest of any stage
  int64_t PeakDeviceBytes() const;
};

enum class Spans : uint8_t { kNone, kCompute, kAll };

// The schedule must pass CheckShape, CheckStages and CheckMessages. FailedPrecondition with stage
// and action if the schedule waits forever.
absl::StatusOr<ScheduleTimes> SimulateSchedule(const Schedule& schedule, const ScheduleCosts& costs,
                                               CopyStreams streams = {}, Spans spans = Spans::kAll);

}  // namespace shoal::plan
