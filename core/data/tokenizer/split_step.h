// The Split step of a pre-tokenizer: cuts each piece where a pattern matches.
#pragma once

#include "core/data/tokenizer/pre_tokenizer.h"
#include "core/data/tokenizer/text_pattern.h"

namespace shoal::worker {

// Whether a match is removed, becomes a piece, joins the piece before or after it, or forms one
// piece with adjacent matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// `invert`: text between matches counts as the match.
PreTokenizerStep MakeSplit(TextPattern pattern, SplitBehavior behavior, bool invert);

}  // namespace shoal::worker
