// Packs the samples of one worker into microbatches under a token limit. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>

#include "core/plan/step/balanced_split.h"

namespace shoal::plan {

// Returns as few packs as the method finds (never more than first-fit decreasing needs), none above
// `limit` tokens, and with costs as even as the limit allows. Every item must have at most `limit`
// tokens. No pack is empty.
ItemSets PackUnderLimit(std::span<const int64_t> tokens, std::span<const double> costs,
                        int64_t limit);

// Returns exactly `count` packs, some possibly empty; nothing if it finds no way (with a pack for
// each item there always is one).
ItemSets PackInto(std::span<const int64_t> tokens, std::span<const double> costs, int64_t limit,
                  int count);

}  // namespace shoal::plan
