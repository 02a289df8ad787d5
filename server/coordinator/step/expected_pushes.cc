#include "server/coordinator/step/expected_pushes.h"

#include "core/base/status.h"
#include "core/model/unit_shards.h"
#include "server/coordinator/step/step_result.h"

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

std::vector<int64_t> ExpectedPushes(const PushPlan& plan, const std::vector<PushedWork>& works,
                                    int ranks) {
  const std::vector<int64_t> by_unit = PushesByUnit(plan, works);
  std::vector<int> sharing;  // ranks
  for (const PushedWork& work : works) {
    if (work.how == NextStepRequest::PUSHES_OF_SHARDS && work.packs > 0) {
      sharing.push_back(work.rank);
    }
  }
  std::vector<int64_t> expected;
  expected.reserve(plan.partitions.size());
  for (const plan::PartitionSpec& partition : plan.partitions) {
    const auto unit = static_cast<size_t>(partition.unit);
    int64_t& pushes = expected.emplace_back(by_unit[unit]);
    for (const int rank : sharing) {
      pushes += Overlap(partition, plan::ShardOf(plan.unit_elements[unit], rank, ranks)) ? 1 : 0;
    }
  }
  return expected;
}

absl::Status CheckPushes(const std::vector<int64_t>& expected,
                         const std::vector<proto::PrepareReply>& prepared) {
  for (size_t server = 0; server < prepared.size(); ++server) {
    const proto::PrepareReply& reply = prepared[server];
    SHOAL_RETURN_IF_ERROR(CheckWhole(server, reply));
    for (int i = 0; i < reply.partitions_size(); ++i) {
      const int partition = reply.partitions(i);
      if (partition < 0 || partition >= std::ssize(expected)) {
        return Internal("server {} reports partition {} of {}", server, partition, expected.size());
      }
      const int64_t pushes = expected[static_cast<size_t>(partition)];
      if (reply.pushes(i) != pushes) {
        return Aborted("server {} took {} pushes of partition {}, and the step's packs make {}",
                       server, reply.pushes(i), partition, pushes);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::server
