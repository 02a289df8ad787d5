#include "core/plan/pipeline/reserved_memory.h"

#include <array>
#include <limits>

#include "core/plan/memory/stage_memory.h"

namespace shoal::plan {
namespace {

constexpr int64_t kPoolAlignment = 64;  // of what the runtime's pools allocate

}  // namespace

ReservedMemory ReservedBy(const Schedule& schedule, int stage,
                          const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                          const StageBudget& budget) {
  // Without a budget anything is enough.
  const auto enough = [](int64_t limit, int64_t taken) {
    return limit > 0 ? limit - taken : std::numeric_limits<int64_t>::max();
  };
  const auto reserve = [&](int64_t messages) {
    std::array<int64_t, kMemoryPools> limits = {};
    limits[static_cast<size_t>(MemoryPool::kDevice)] =
        enough(budget.device, budget.other + messages);
    limits[static_cast<size_t>(MemoryPool::kHost)] = enough(budget.host, 0);
    return ReplayMemory(schedule, stage, bytes_of, kPoolAlignment, limits);
  };
  StageMemory memory = reserve(0);
  const int64_t messages = memory.Of(MemoryPool::kMessages).capacity;
  ReservedMemory reserved{.device = memory.Of(MemoryPool::kDevice).capacity + messages,
                          .host = memory.Of(MemoryPool::kHost).capacity};
  if (!reserved.FitsDevice(budget) && messages > 0) {
    memory = reserve(messages);
    reserved.device = memory.Of(MemoryPool::kDevice).capacity + messages;
  }
  return reserved;
}

}  // namespace shoal::plan
