#include "server/coordinator/step/expected_pushes.h"

#include "core/model/unit_shards.h"

namespace shoal::server {
namespace {

using proto::NextStepRequest;

// By unit, of workers that push packs or sums of them.
std::vector<int64_t> PushesByUnit(const PushPlan& plan, const std::vector<PushedWork>& works) {
  std::vector<int64_t> pushes(plan.unit_elements.size(), 0);
  for (const PushedWork& work : works) {
    for (size_t unit = 0; unit < pushes.size(); ++unit) {
      const int per_pack = plan.per_pack[work.stage][unit];
      if (work.how == NextStepRequest::PUSHES_OF_PACKS) {
        pushes[unit] += work.packs * per_pack;
      } else if (work.how == NextStepRequest::PUSHES_OF_STEPS && work.packs > 0 && per_pack > 0) {
        pushes[unit] += work.rounds;
      }
    }
  }
  return pushes;
}

bool Overlap(const plan::PartitionSpec& partition, const plan::ElementRange& shard) {
  return shard.first < partition.offset + partition.count && partition.offset < shard.end();
}

}  // namespace

std::vector<int64_t> MostPushes(const PushPlan& plan, int64_t packs) {
  std::vector<PushedWork> works;
  for (size_t stage = 0; stage < plan.per_pack.size(); ++stage) {
    works.push_back({.stage = stage, .packs = packs});
  }
  return PushesByUnit(plan, works);
}

ExpectedPushes::ExpectedPushes(const PushPlan& plan, const std::vector<PushedWork>& works,
                               int ranks)
    : plan_(plan), ranks_(ranks), by_unit_(PushesByUnit(plan, works)) {
  for (const PushedWork& work : works) {
    if (work.how == NextStepRequest::PUSHES_OF_SHARDS && work.packs > 0) {
      sharing_.push_back(work.rank);
    }
  }
}

int64_t ExpectedPushes::Of(const plan::PartitionSpec& partition) const {
  const auto unit = static_cast<size_t>(partition.unit);
  return by_unit_[unit] + std::ranges::count_if(sharing_, [&](int rank) {
           return Overlap(partition, plan::ShardOf(plan_.unit_elements[unit], rank, ranks_));
         });
}

}  // namespace shoal::server
