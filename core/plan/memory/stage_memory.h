// What each action of a stage's list takes of memory and gives back (the rules of
// core/plan/schedule/schedule.h), and what the whole list therefore needs. The runtime moves memory
// by these moves while it runs, and the replay of them over numbers tells it beforehand how large
// its pools have to be; so both agree to the byte, and a list that does not fit is refused before
// anything ran. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/plan/memory/activation_bytes.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// What a stage holds of a (chunk, microbatch).
enum class Holding : uint8_t {
  kActivations,
  kGradients,       // what a split backward leaves for that for the weights
  kHostCopy,        // of the activations
  kInput,           // of the forward, where it comes from a chunk of the same stage
  kOutputGradient,  // for the backward, where it comes from a chunk of the same stage
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
  bool take =
      false;  // else given back, where it is held at all: no host copy is without an offload
};

// In the order in which they are made: those ahead of the action's own work, and those behind it.
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
  int64_t capacity = 0;  // of the stretch that they lie in, holes included
  // Where in it each piece lies, in the order in which the walk takes them; those of no bytes are
  // not taken.
  std::vector<int64_t> places;
};

struct StageMemory {
  std::array<PoolNeeds, kMemoryPools> pools;

  const PoolNeeds& Of(MemoryPool pool) const { return pools[static_cast<size_t>(pool)]; }
};

// Of the list of `stage`, which passes CheckStages. Sizes begin at multiples of `alignment`. By
// pool, places are not looked for further where `enough` is.
StageMemory ReplayMemory(const Schedule& schedule, int stage,
                         const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                         int64_t alignment, const std::array<int64_t, kMemoryPools>& enough = {});

}  // namespace shoal::plan
