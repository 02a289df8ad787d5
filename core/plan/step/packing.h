// Packing the samples of one worker into microbatches under a token limit. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>

#include "core/plan/step/balanced_split.h"

namespace shoal::plan {

// As few packs as the method finds (never more than first-fit decreasing needs), none above `limit`
// tokens, and among them costs as even as the limit allows. Every item has at most `limit` tokens.
// No pack is empty.
ItemSets PackUnderLimit(std::span<const int64_t> tokens, std::span<const double> costs,
                        int64_t limit);

// In exactly `count` packs, some of which may be empty; nothing where no way to do so is found
// (with a pack for each item one always is).
ItemSets PackInto(std::span<const int64_t> tokens, std::span<const double> costs, int64_t limit,
                  int count);

}  // namespace shoal::plan
