#include "core/data/tokenizer/split_step.h"

#include <algorithm>
#include <optional>

#include "core/base/status.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

struct Cut {
  TextRange range;
  bool match = false;
};

// Turns the alternation of matches and gaps into pieces.
void Arrange(SplitBehavior behavior, std::vector<Cut>& cuts, std::vector<TextRange>& out) {
  const auto keep = [&](const TextRange& range) {
    if (range.begin < range.end) {
      out.push_back(range);
    }
  };
  if (behavior == SplitBehavior::kRemoved || behavior == SplitBehavior::kIsolated) {
    for (const Cut& cut : cuts) {
      if (behavior == SplitBehavior::kIsolated || !cut.match) {
        keep(cut.range);
      }
    }
    return;
  }
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) {
    std::reverse(cuts.begin(), cuts.end());
  }
  std::vector<TextRange> merged;
  bool previous = false;
  for (const Cut& cut : cuts) {
    const bool joins =
        behavior == SplitBehavior::kContiguous ? cut.match == previous : cut.match && !previous;
    if (joins && !merged.empty()) {
      (backwards ? merged.back().begin : merged.back().end) =
          backwards ? cut.range.begin : cut.range.end;
    } else {
      merged.push_back(cut.range);
    }
    previous = cut.match;
  }
  if (backwards) {
    std::reverse(merged.begin(), merged.end());
  }
  std::for_each(merged.begin(), merged.end(), keep);
}

absl::Status CutPiece(const TextPattern& pattern, bool invert, std::string_view text,
                      std::vector<Cut>& cuts) {
  size_t done = 0;
  size_t from = 0;
  while (from <= text.size()) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<TextRange> match, pattern.Find(text, from));
    if (!match.has_value()) {
      break;
    }
    if (done < match->begin) {
      cuts.push_back({{done, match->begin}, invert});
    }
    cuts.push_back({*match, !invert});
    done = match->end;
    from = match->end;
    if (match->begin == match->end) {  // an empty match: go on after the next character
      from += from < text.size() ? CharacterLength(text[from]) : 1;
    }
  }
  if (done < text.size()) {
    cuts.push_back({{done, text.size()}, invert});
  }
  return absl::OkStatus();
}

}  // namespace

PreTokenizerStep MakeSplit(TextPattern pattern, SplitBehavior behavior, bool invert) {
  return [pattern = std::move(pattern), behavior, invert](Pieces& pieces) -> absl::Status {
    std::vector<TextRange> out;
    std::vector<Cut> cuts;
    for (size_t i = 0; i < pieces.ranges.size(); ++i) {
      cuts.clear();
      SHOAL_RETURN_IF_ERROR(CutPiece(pattern, invert, pieces.piece(i), cuts));
      const size_t first = out.size();
      Arrange(behavior, cuts, out);
      for (size_t k = first; k < out.size(); ++k) {
        out[k].begin += pieces.ranges[i].begin;
        out[k].end += pieces.ranges[i].begin;
      }
    }
    pieces.ranges = std::move(out);
    return absl::OkStatus();
  };
}

}  // namespace shoal::worker
