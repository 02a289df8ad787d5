// Simulates what time and memory one candidate takes with a given offload, over the step or over
// its first microbatches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/planner.h"
#include "core/plan/schedule/builders/compute_times.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

// Where a candidate exceeds its budget by most.
struct Excess {
  int stage = 0;
  bool host = false;
  int64_t bytes = 0;
};

struct Measured {
  double offloaded_chunks = 0;
  double seconds = 0;  // of the whole step: estimated if it was not simulated whole
  double bubble_share = 0;
  std::vector<int64_t> device_bytes;  // peaks, by stage
  std::vector<int64_t> host_bytes;
  std::optional<Excess> excess;
};

// Judges by the peaks.
std::optional<Excess> ExcessOf(std::span<const StageBudget> budgets, const Measured& measured);

class Evaluation {
 public:
  // Uses the first `microbatches` of the request's. The request must outlive this.
  static absl::StatusOr<Evaluation> Make(const PipelineRequest& request,
                                         const PipelineChoice& choice, size_t microbatches);

  const Measured& without_offload() const { return without_; }
  double copy_ratio() const { return copy_ratio_; }
  // Returns about how many chunks the copies have time for, in steps of a quarter; 0 if nothing can
  // be offloaded.
  double affordable_chunks() const { return affordable_; }

  // Whether it fits by its peaks, or also by what the stages' pools reserve for them, including the
  // holes that pieces of unequal sizes leave.
  enum class Fit : uint8_t { kPeaks, kReserved };
  absl::StatusOr<Measured> With(double offloaded_chunks, Fit fit) const;

 private:
  Evaluation(const PipelineRequest& request, ScheduleCosts costs, Schedule schedule)
      : request_(&request), costs_(std::move(costs)), schedule_(std::move(schedule)) {}
  Schedule ScheduleWith(double offloaded_chunks) const;
  std::optional<Excess> ReservedExcess(const Schedule& schedule) const;
  Measured MeasuredOf(const ScheduleTimes& times, double offloaded_chunks) const;

  const PipelineRequest* request_;
  ScheduleCosts costs_;
  Schedule schedule_;  // without transfers
  std::vector<ComputeTimes> times_;
  // Of the microbatches left out: compute by stage, and roughly what they take.
  std::vector<double> rest_;
  double rest_seconds_ = 0;
  Measured without_;
  double copy_ratio_ = 0;
  double affordable_ = 0;
};

}  // namespace shoal::plan
