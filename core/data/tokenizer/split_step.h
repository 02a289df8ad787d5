// The Split step of a pre-tokenizer: cuts each piece where a pattern matches.
#pragma once

#include <memory>

#include "core/data/tokenizer/pre_tokenizer.h"
#include "core/data/tokenizer/text_pattern.h"

namespace shoal::worker {

// What becomes of a match: it goes, stands alone, is part of the piece before or after it, or of
// one piece with the matches next to it.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// `invert`: what lies between matches counts as the match.
std::unique_ptr<PreTokenizerStep> MakeSplit(TextPattern pattern, SplitBehavior behavior,
                                            bool invert);

}  // namespace shoal::worker
