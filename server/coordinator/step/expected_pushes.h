// What servers must have taken when a step's packs are done: how many pushes by partition. Compared
// with what they counted (step_result.h), so that no contribution is missing, whoever was to make
// it. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/partition.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

// What of it the job alone decides.
struct PushPlan {
  std::vector<plan::PartitionSpec> partitions;
  std::vector<int64_t> unit_elements;
  // By stage and unit: the pushes that a stage makes for a pack (plan::PushesPerPack).
  std::vector<std::vector<int>> per_pack;

  // Whether servers go on reading something out of what they loaded.
  bool freezes() const { return std::ranges::any_of(partitions, &plan::PartitionSpec::frozen); }
};

// One worker's work of an attempt, as done.
struct PushedWork {
  size_t stage = 0;
  int rank = 0;  // among the job's workers
  proto::NextStepRequest::Pushes how = proto::NextStepRequest::PUSHES_OF_PACKS;
  int64_t packs = 0;
  int64_t rounds = 1;  // that had packs: each has a sum of its own
};

// By unit: to each of its partitions, at most, of a step of so many packs. As many come only where
// each pack is pushed by itself, and all of them are.
std::vector<int64_t> MostPushes(const PushPlan& plan, int64_t packs);

class ExpectedPushes {
 public:
  // `ranks`: how many workers share the sums, where they push shards. `plan` outlives it.
  ExpectedPushes(const PushPlan& plan, const std::vector<PushedWork>& works, int ranks);

  // To that partition of the plan.
  int64_t Of(const plan::PartitionSpec& partition) const;
  const std::vector<plan::PartitionSpec>& partitions() const { return plan_.partitions; }

 private:
  const PushPlan& plan_;
  const int ranks_;
  std::vector<int64_t> by_unit_;  // of packs and sums
  std::vector<int> sharing_;      // ranks
};

}  // namespace shoal::server
