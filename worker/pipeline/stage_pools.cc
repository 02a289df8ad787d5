#include "worker/pipeline/stage_pools.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace shoal::worker {

using plan::MemoryPool;

StagePools::StagePools(int stage, Device& device, Memory& host, Stream* poison)
    : stage_(stage),
      device_(device),
      host_(host),
      arenas_{Arena(device, fmt::format("stage {}'s activations", stage), poison),
              Arena(host, fmt::format("stage {}'s offloaded activations", stage), poison),
              Arena(device, fmt::format("messages within stage {}", stage), poison)} {}

absl::Status StagePools::BeginStep(
    const plan::Schedule& schedule,
    std::function<plan::ChunkBytes(int chunk, int microbatch)> bytes_of) {
  bytes_of_ = std::move(bytes_of);
  microbatches_ = static_cast<size_t>(schedule.shape.microbatches);
  pieces_.assign(static_cast<size_t>(schedule.shape.chunks) * microbatches_ * plan::kHoldings,
                 nullptr);
  std::array<int64_t, plan::kMemoryPools> reserved;
  std::ranges::transform(arenas_, reserved.begin(), &Arena::capacity);
  needs_ = plan::ReplayMemory(schedule, stage_, bytes_of_, kBufferAlignment, reserved);
  taken_ = {};
  SHOAL_RETURN_IF_ERROR(
      CheckBudget(device_, schedule, std::array{MemoryPool::kDevice, MemoryPool::kMessages}));
  SHOAL_RETURN_IF_ERROR(CheckBudget(host_, schedule, std::array{MemoryPool::kHost}));
  for (size_t i = 0; i < arenas_.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(arenas_[i].Reserve(needs_.pools[i].capacity));
  }
  return absl::OkStatus();
}

absl::Status StagePools::CheckBudget(const Memory& memory, const plan::Schedule& schedule,
                                     std::span<const MemoryPool> pools) const {
  int64_t needed = 0;
  int64_t at_once = 0;
  int64_t held = 0;
  for (const MemoryPool pool : pools) {
    needed += std::max(needs_.Of(pool).capacity, this->pool(pool).capacity());
    at_once += needs_.Of(pool).peak;
    held += this->pool(pool).capacity();
  }
  const int64_t left = memory.budget_bytes() - (memory.allocated_bytes() - held);
  if (memory.budget_bytes() == 0 || needed <= left) {
    return absl::OkStatus();
  }
  return ResourceExhausted(
      "stage {}: {} needs {} B of {} memory ({} B in use at once), and of its budget of {} B {} B "
      "are left; {} or lower microbatch_tokens",
      stage_, schedule.name, needed, memory.name(), at_once, memory.budget_bytes(), left,
      &memory == &host_ ? "offload less, raise the host's budget"
                        : "offload more, raise the budget");
}

absl::Status StagePools::Make(std::span<const plan::MemoryMove> moves) {
  for (const plan::MemoryMove& move : moves) {
    const auto pool = static_cast<size_t>(PoolOf(move.holding));
    Arena& arena = arenas_[pool];
    std::byte*& piece = pieces_[KeyOf(move.holding, move.chunk, move.microbatch)];
    if (!move.take) {
      if (piece != nullptr) {
        arena.Give(piece);
        piece = nullptr;
      }
      continue;
    }
    if (const int64_t bytes = BytesOf(move.holding, move.chunk, move.microbatch); bytes > 0) {
      SHOAL_ASSIGN_OR_RETURN(piece, arena.Take(bytes, needs_.pools[pool].offsets[taken_[pool]++]));
    }
  }
  return absl::OkStatus();
}

void StagePools::GiveAll() {
  for (Arena& arena : arenas_) {
    arena.GiveAll();
  }
  std::ranges::fill(pieces_, nullptr);
}

}  // namespace shoal::worker
