// Packing the samples of one worker into microbatches under a token limit. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>

#include "plan/balanced_split.h"

namespace shoal::plan {

// As few packs as the method finds (never more than first-fit decreasing needs), none above `limit`
// tokens, and among them costs as even as the limit allows. Every item has at most `limit` tokens.
// No pack is empty.
ItemSets PackUnderLimit(std::span<const int64_t> tokens, std::span<const double> costs,
                        int64_t limit);

}  // namespace shoal::plan
