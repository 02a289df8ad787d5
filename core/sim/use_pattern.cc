#include "core/sim/use_pattern.h"

#include <algorithm>

#include "core/base/dtype.h"
#include "core/job/job_units.h"
#include "core/model/partition.h"

namespace shoal::sim {
namespace {

// Places compute: forward of the blocks, the head at once, backward of the blocks at twice the
// time. With tied embeddings the head computes in the use of the embedding that follows its own.
void PlaceCompute(const plan::ModelSpec& spec, UsePattern& pattern) {
  const auto layers = static_cast<int>(spec.layers);
  Progress done;
  bool backward = false;  // from the head on
  for (Use& use : pattern.uses) {
    use.begin = done;
    backward = backward || use.unit == layers + 1;
    use.backward = backward;
    const bool is_block = use.unit >= 1 && use.unit <= layers;
    if (is_block) {
      done.blocks += use.backward ? 2 : 1;
    } else if (use.backward && use.unit == (spec.tied_embeddings ? 0 : layers + 1)) {
      done.heads += 1;
    }
    use.end = done;
  }
  pattern.uses.back().end.all = true;
}

// `wire`: bytes by unit.
void PlaceGets(const std::vector<plan::UnitSpec>& units, const std::vector<int64_t>& wire,
               UsePattern& pattern) {
  std::vector<int64_t> last_use(units.size(), -1);
  int64_t position = 0;
  for (const bool first : {true, false}) {
    for (Use& use : pattern.uses) {
      const auto unit = static_cast<size_t>(use.unit);
      const bool held =
          last_use[unit] >= 0 &&
          (pattern.keep_for_step || position - last_use[unit] <= pattern.prefetch_units);
      const bool stays = units[unit].frozen && pattern.keep_for_step;  // over the run
      (first ? use.first_get_bytes : use.later_get_bytes) = held || stays ? 0 : wire[unit];
      last_use[unit] = position++;
    }
  }
}

void PlacePushes(const plan::ModelSpec& spec, const std::vector<plan::UnitSpec>& units,
                 const plan::Job& job, UsePattern& pattern) {
  const int64_t element = SizeOf(job.service.gradient_type);
  // Returns whether there is one.
  const auto push = [&](Use& use, int unit, BufferClass buffer) {
    const plan::UnitSpec& spec_of = units[static_cast<size_t>(unit)];
    if (!spec_of.frozen) {
      use.pushes.push_back({unit, buffer, spec_of.count * element});
    }
    return !spec_of.frozen;
  };
  const int head = static_cast<int>(spec.layers) + 1;
  for (Use& use : pattern.uses) {
    if (use.end.heads > use.begin.heads) {
      use.waits_for_head_buffer = push(use, head, BufferClass::kHead);
      use.waits_for_embedding_buffer = spec.tied_embeddings && !units.front().frozen;
      if (spec.tied_embeddings && plan::PushesEachContribution(job)) {
        push(use, 0, BufferClass::kEmbedding);
      }
    } else if (use.backward && use.end.blocks > use.begin.blocks) {
      use.waits_for_block_buffer = push(use, use.unit, BufferClass::kBlock);
    } else if (use.backward && use.unit > head) {
      push(use, use.unit, BufferClass::kBlock);
    }
  }
  push(pattern.uses.back(), 0, BufferClass::kEmbedding);
}

}  // namespace

UsePattern BuildUsePattern(const plan::ModelSpec& spec, const plan::Job& job,
                           const plan::WorkerPolicy& policy) {
  UsePattern pattern{
      .prefetch_units = job.train.prefetch_units,
      .keep_for_step = policy.residency == plan::Residency::kStep,
      .push_per_step = policy.push == plan::PushPolicy::kStep,
      .buffers = {static_cast<int>(std::min<int64_t>(spec.layers, plan::kGradientBuffersPerSize)),
                  1, 1},
      .layers = spec.layers};
  for (const int unit : plan::UseOrder(spec)) {
    pattern.uses.push_back({.unit = unit});
  }
  const std::vector<plan::UnitSpec> units = plan::JobUnits(spec, job.train);
  PlaceCompute(spec, pattern);
  PlaceGets(units,
            plan::WireBytes(units, plan::BuildPartitions(units, job.service.partition_bytes),
                            job.service.wire_type),
            pattern);
  PlacePushes(spec, units, job, pattern);
  return pattern;
}

}  // namespace shoal::sim
