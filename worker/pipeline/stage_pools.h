// The memory that a stage's list takes and frees while it runs, by the moves of
// core/plan/memory/stage_memory.h: activations and gradients on the device, their copies on the
// host, and messages between chunks of the same stage. Each pool is one reservation, made as large
// as the replay of the list says before the step begins; within a step nothing is allocated.
//
// For one thread. Failure: what does not fit is ResourceExhausted before the step begins, with what
// the stage needs and what is available.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/memory/stage_memory.h"
#include "worker/backend/arena.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

class StagePools {
 public:
  // Messages also lie in the device's memory. `poison`: see worker/backend/arena.h; may be null.
  StagePools(int stage, Device& device, Memory& host, Stream* poison);

  // Reserves for this stage's list. `bytes_of` must stay valid until the next call.
  absl::Status BeginStep(const plan::Schedule& schedule,
                         std::function<plan::ChunkBytes(int chunk, int microbatch)> bytes_of);
  absl::Status Make(std::span<const plan::MemoryMove> moves);
  // Null if nothing is held, or it is empty.
  std::byte* Of(plan::Holding holding, int chunk, int microbatch) const {
    return pieces_[KeyOf(holding, chunk, microbatch)];
  }
  int64_t BytesOf(plan::Holding holding, int chunk, int microbatch) const {
    return plan::BytesOf(bytes_of_(chunk, microbatch), holding);
  }
  // Frees everything after a failure, when no copy touches the memory any more.
  void GiveAll();

  const Arena& pool(plan::MemoryPool pool) const { return arenas_[static_cast<size_t>(pool)]; }

 private:
  size_t KeyOf(plan::Holding holding, int chunk, int microbatch) const {
    return (static_cast<size_t>(chunk) * microbatches_ + static_cast<size_t>(microbatch)) *
               plan::kHoldings +
           static_cast<size_t>(holding);
  }
  absl::Status CheckBudget(const Memory& memory, const plan::Schedule& schedule,
                           std::span<const plan::MemoryPool> pools) const;

  const int stage_;
  Device& device_;
  Memory& host_;
  std::array<Arena, plan::kMemoryPools> arenas_;       // by plan::MemoryPool
  plan::StageMemory needs_;                            // of the step
  std::array<size_t, plan::kMemoryPools> taken_ = {};  // pieces of the step so far
  size_t microbatches_ = 0;
  std::function<plan::ChunkBytes(int chunk, int microbatch)> bytes_of_;
  std::vector<std::byte*> pieces_;  // by KeyOf
};

}  // namespace shoal::worker
