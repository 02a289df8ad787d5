#include "core/plan/memory/stage_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/plan/memory/arena_layout.h"

namespace shoal::plan {
namespace {

constexpr int64_t kNotHeld = -1;

bool SameStage(const ScheduleShape& shape, int virtual_stage) {
  return virtual_stage + 1 < shape.VirtualStages() && !SendsActivation(shape, virtual_stage);
}

}  // namespace

MemoryPool PoolOf(Holding holding) {
  switch (holding) {
    case Holding::kActivations:
    case Holding::kGradients:
      return MemoryPool::kDevice;
    case Holding::kHostCopy:
      return MemoryPool::kHost;
    default:
      return MemoryPool::kMessages;
  }
}

int64_t BytesOf(const ChunkBytes& bytes, Holding holding) {
  switch (holding) {
    case Holding::kActivations:
    case Holding::kHostCopy:
      return bytes.activations;
    case Holding::kGradients:
      return bytes.gradients;
    default:
      return bytes.message;
  }
}

ActionMoves MovesOf(const ScheduleShape& shape, int stage, const Action& action) {
  ActionMoves moves;
  const int here = shape.VirtualStageOf(stage, action.chunk);
  const int chunk = action.chunk;
  const int microbatch = action.microbatch;
  switch (action.operation) {
    case Operation::kForward:
      moves.Add(Holding::kActivations, chunk, microbatch, true);
      if (SameStage(shape, here)) {
        moves.Add(Holding::kInput, shape.At(here + 1).chunk, microbatch, true);
      }
      moves.before_ = moves.count_;
      moves.Add(Holding::kInput, chunk, microbatch, false);
      break;
    case Operation::kBackwardInput:
    case Operation::kBackward:
      if (action.operation == Operation::kBackwardInput) {
        moves.Add(Holding::kGradients, chunk, microbatch, true);
      }
      if (here > 0 && SameStage(shape, here - 1)) {
        moves.Add(Holding::kOutputGradient, shape.At(here - 1).chunk, microbatch, true);
      }
      moves.before_ = moves.count_;
      moves.Add(Holding::kHostCopy, chunk, microbatch, false);
      moves.Add(Holding::kOutputGradient, chunk, microbatch, false);
      if (action.operation == Operation::kBackward) {
        moves.Add(Holding::kActivations, chunk, microbatch, false);
      }
      break;
    case Operation::kBackwardWeights:
      moves.Add(Holding::kActivations, chunk, microbatch, false);
      moves.Add(Holding::kGradients, chunk, microbatch, false);
      break;
    case Operation::kOffload:
      moves.Add(Holding::kHostCopy, chunk, microbatch, true);
      moves.before_ = moves.count_;
      break;
    case Operation::kRelease:
      moves.Add(Holding::kActivations, chunk, microbatch, false);
      break;
    case Operation::kPrepare:
      moves.Add(Holding::kActivations, chunk, microbatch, true);
      moves.before_ = moves.count_;
      break;
    default:
      break;
  }
  return moves;
}

StageMemory ReplayMemory(const Schedule& schedule, int stage,
                         const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                         int64_t alignment, const std::array<int64_t, kMemoryPools>& enough) {
  const ScheduleShape& shape = schedule.shape;
  struct Pool {
    std::vector<Lifetime> lifetimes;
    int64_t used = 0;
    int64_t peak = 0;
  };
  std::array<Pool, kMemoryPools> pools;
  // By what is held: its lifetime, if it is held.
  std::vector<int64_t> held(static_cast<size_t>(shape.chunks) * shape.microbatches * kHoldings,
                            kNotHeld);
  size_t moment = 0;
  const auto make = [&](std::span<const MemoryMove> moves) {
    for (const MemoryMove& move : moves) {
      Pool& pool = pools[static_cast<size_t>(PoolOf(move.holding))];
      int64_t& lifetime =
          held[(static_cast<size_t>(move.chunk) * shape.microbatches + move.microbatch) *
                   kHoldings +
               static_cast<size_t>(move.holding)];
      const int64_t bytes = BytesOf(bytes_of(move.chunk, move.microbatch), move.holding);
      ++moment;
      if (move.take && bytes > 0) {
        SHOAL_CHECK(lifetime == kNotHeld);
        lifetime = static_cast<int64_t>(pool.lifetimes.size());
        pool.lifetimes.push_back({.size = bytes, .from = moment});
        pool.peak = std::max(pool.peak, pool.used += bytes);
      } else if (!move.take && lifetime != kNotHeld) {
        pool.lifetimes[static_cast<size_t>(lifetime)].until = moment;
        pool.used -= bytes;
        lifetime = kNotHeld;
      }
    }
  };
  for (const Action& action : schedule.stages[stage]) {
    const ActionMoves moves = MovesOf(shape, stage, action);
    make(moves.before());
    make(moves.after());
  }
  StageMemory memory;
  for (size_t i = 0; i < pools.size(); ++i) {
    ArenaLayout layout = LayOutArena(pools[i].lifetimes, alignment, enough[i]);
    memory.pools[i] = {
        .peak = pools[i].peak, .capacity = layout.capacity, .offsets = std::move(layout.offsets)};
  }
  return memory;
}

}  // namespace shoal::plan
