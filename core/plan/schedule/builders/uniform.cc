#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"

namespace shoal::plan {
namespace {

// The unit slots of the block, of which each microbatch takes three (F, B, W) for each chunk.
// Passes through a chunk are 3K slots apart, and one more turn of three whenever that would hit a
// slot that is taken modulo 3v.
struct Block {
  Block(int stages, int chunks, int apart)
      : stages(stages), chunks(chunks), apart(apart), turn(chunks / std::gcd(chunks, apart)) {}

  int64_t Forward(int chunk, int stage) const {
    return int64_t{3} * apart * chunk + stage + 3 * (chunk / turn);
  }
  int64_t Backward(int chunk, int stage) const {
    const int pass = chunks - 1 - chunk;
    return Forward(chunks - 1, stage) + 3 * (stages - 1 - stage) + 1 + int64_t{3} * apart * pass +
           3 * (pass / turn);
  }

  int stages;
  int chunks;
  int apart;  // K
  int turn;   // sigma
};

}  // namespace

Schedule UniformPipe(int stages, int chunks, int microbatches, UniformStretch stretch) {
  const ScheduleShape shape{.stages = stages, .chunks = chunks, .microbatches = microbatches};
  const auto stretched = static_cast<int>(std::ceil(stretch.longest_pass / stretch.longest_chunk));
  const Block block(stages, chunks, std::max(SmallestGroup(stages), stretched));
  std::vector<StageActions> lists;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<std::pair<int64_t, Action>> slots;
    for (int n = 0; n < microbatches; ++n) {
      const int64_t begin = int64_t{3} * chunks * n;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const int64_t backward = begin + block.Backward(chunk, stage);
        slots.emplace_back(begin + block.Forward(chunk, stage),
                           Action{Operation::kForward, chunk, n});
        slots.emplace_back(backward, Action{Operation::kBackwardInput, chunk, n});
        slots.emplace_back(backward + 1, Action{Operation::kBackwardWeights, chunk, n});
      }
    }
    lists.push_back(InOrder(std::move(slots)));
  }
  return WithMessages("PO", shape, std::move(lists));
}

}  // namespace shoal::plan
