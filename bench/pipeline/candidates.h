// The schedules that are compared, from a number of stages and the speed of copies.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::bench {

// A stage's work on one microbatch, however many chunks it is in: forward and both parts of
// backward take a unit of time each, activations one unit of memory.
inline constexpr double kStageSeconds = 3;
inline constexpr int64_t kStageBytes = 55440;  // any number of chunks up to 12 divides it

struct Candidate {
  std::string name;  // "PO-H"
  std::string_view colour;
  plan::Schedule schedule;
  double copy_ratio = 0;  // k; 0: copies take no time, and there are none
  plan::ScheduleTimes times;

  // Of the ideal, in which no stage ever waits.
  double Throughput() const;
  // Of the stage that needs most, in activations of the whole model for one microbatch.
  double PeakShare() const;
};

// In units of time.
plan::ScheduleCosts CandidateCosts(const plan::ScheduleShape& shape, double copy_ratio);

// `copy_ratio` is k: time to copy an activation out and back over the time to compute with it.
absl::StatusOr<std::vector<Candidate>> WithoutOffload(int stages, int chunks, int microbatches);
absl::StatusOr<std::vector<Candidate>> WithOffload(int stages, int chunks, int microbatches,
                                                   double copy_ratio);
// The former, then the latter.
absl::StatusOr<std::vector<Candidate>> AllCandidates(int stages, int chunks, int microbatches,
                                                     double copy_ratio);

// Those that no other beats: none has a smaller peak and at least the throughput, or as small a
// peak and more throughput. Indices in the order of peaks.
std::vector<size_t> ParetoFront(const std::vector<Candidate>& candidates);

}  // namespace shoal::bench
