// Decides which candidates of one device, or of two that share a switch, are offloaded, and where
// in the lists their transfers stand: the heart of core/plan/schedule/builders/offload.h.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "core/plan/schedule/builders/compute_times.h"
#include "core/plan/schedule/builders/copy_plan.h"
#include "core/plan/schedule/schedule_costs.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

struct OffloadCandidate {
  int stage = 0;
  int chunk = 0;
  int microbatch = 0;
  size_t forward_place = 0;  // among the stage's compute actions
  size_t backward_place = 0;
  double forward_end = 0;
  double backward_begin = 0;
  const ChunkCost* cost = nullptr;

  double lifespan() const { return backward_begin - forward_end; }
};

struct PlacedOffload {
  OffloadCandidate candidate;
  PlannedCopy copy;
  // Indices of the stage's compute actions before which the transfers stand.
  size_t offload = 0;
  size_t release = 0;
  size_t prepare = 0;  // also of reload

  // Whether compute runs in between without that memory.
  bool Gains() const { return release < prepare; }
};

class OffloadPlacing {
 public:
  // Stages first_stage to first_stage + stages - 1, at most two; `times` of all stages.
  OffloadPlacing(std::span<const ComputeTimes> times, const ScheduleCosts& costs,
                 CopyStreams streams, int first_stage, int stages);

  struct Result {
    std::vector<PlacedOffload> placed;
    std::vector<OffloadCandidate> brief;  // needed again too soon
    std::vector<OffloadCandidate> late;   // no time for their copies
  };
  Result Choose(std::vector<OffloadCandidate> candidates);

  // Returns when the plan frees the memory of a placed candidate.
  double ReleaseTime(const PlacedOffload& placed) const;

 private:
  PlacedOffload Placed(const OffloadCandidate& candidate, const PlannedCopy& copy) const;
  std::vector<PlannedCopy> Plan(std::span<const OffloadCandidate> candidates) const;
  size_t CountThatFits(std::span<const OffloadCandidate> candidates) const;
  double PeaksWith(std::span<const OffloadCandidate> candidates,
                   std::span<const PlannedCopy> copies) const;

  std::span<const ComputeTimes> times_;
  CopyStreams streams_;
  int first_stage_;
  // Behind a switch copies run in the order in which they become ready, not as planned: each may be
  // late by about one copy of the neighbour.
  double margin_ = 0;
  std::array<std::vector<double>, 2> held_;  // bytes by index in the list, with nothing offloaded
};

}  // namespace shoal::plan
