// What memory each action of a stage's list takes and frees (the rules of
// core/plan/schedule/schedule.h), and what the whole list needs as a result. The runtime moves
// memory by these moves, and replaying them over sizes tells it beforehand how large its pools must
// be. So both agree to the byte, and a list that does not fit is refused before anything runs.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/plan/memory/activation_bytes.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// What a stage holds for a (chunk, microbatch).
enum class Holding : uint8_t {
  kActivations,
  kGradients,       // what a split backward leaves for the backward for the weights
  kHostCopy,        // the host's copy of the activations
  kInput,           // the forward's input, if it comes from a chunk of the same stage
  kOutputGradient,  // the backward's input, if it comes from a chunk of the same stage
};
inline constexpr int kHoldings = 5;

enum class MemoryPool : uint8_t { kDevice, kHost, kMessages };
inline constexpr int kMemoryPools = 3;

MemoryPool PoolOf(Holding holding);
int64_t BytesOf(const ChunkBytes& bytes, Holding holding);

struct MemoryMove {
  Holding holding = Holding::kActivations;
  int chunk = 0;
  int microbatch = 0;
  bool take = false;  // if false: freed, if held at all: without an offload there is no host copy
};

// In the order in which they happen: those before the action's own work, and those after it.
class ActionMoves {
 public:
  std::span<const MemoryMove> before() const { return {moves_.data(), before_}; }
  std::span<const MemoryMove> after() const { return {moves_.data() + before_, count_ - before_}; }

 private:
  friend ActionMoves MovesOf(const ScheduleShape& shape, int stage, const Action& action);
  void Add(Holding holding, int chunk, int microbatch, bool take) {
    moves_[count_++] = {holding, chunk, microbatch, take};
  }

  std::array<MemoryMove, 6> moves_;
  size_t before_ = 0;
  size_t count_ = 0;
};

ActionMoves MovesOf(const ScheduleShape& shape, int stage, const Action& action);

struct PoolNeeds {
  int64_t peak = 0;      // bytes in use at once
  int64_t capacity = 0;  // of the arena that contains them, including holes
  // Where in the arena each buffer lies, in the order in which the walk takes them; skips empty
  // buffers.
  std::vector<int64_t> offsets;
};

struct StageMemory {
  std::array<PoolNeeds, kMemoryPools> pools;

  const PoolNeeds& Of(MemoryPool pool) const { return pools[static_cast<size_t>(pool)]; }
};

// Replays the list of `stage`, which must pass CheckStages. Sizes begin at multiples of
// `alignment`. For each pool, the search for offsets stops at an arena of `enough`.
StageMemory ReplayMemory(const Schedule& schedule, int stage,
                         const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                         int64_t alignment, const std::array<int64_t, kMemoryPools>& enough = {});

}  // namespace shoal::plan
