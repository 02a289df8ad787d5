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

class Split final : public PreTokenizerStep {
 public:
  Split(TextPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Apply(Pieces& pieces) const override {
    std::vector<TextRange> out;
    std::vector<Cut> cuts;
    for (size_t i = 0; i < pieces.ranges.size(); ++i) {
      const std::string_view text = pieces.piece(i);
      cuts.clear();
      SHOAL_RETURN_IF_ERROR(CutPiece(text, cuts));
      const size_t first = out.size();
      Arrange(behavior_, cuts, out);
      for (size_t k = first; k < out.size(); ++k) {
        out[k].begin += pieces.ranges[i].begin;
        out[k].end += pieces.ranges[i].begin;
      }
    }
    pieces.ranges = std::move(out);
    return absl::OkStatus();
  }

 private:
  absl::Status CutPiece(std::string_view text, std::vector<Cut>& cuts) const {
    size_t done = 0;
    size_t from = 0;
    while (from <= text.size()) {
      SHOAL_ASSIGN_OR_RETURN(const std::optional<TextRange> match, pattern_.Find(text, from));
      if (!match.has_value()) {
        break;
      }
      if (done < match->begin) {
        cuts.push_back({{done, match->begin}, invert_});
      }
      cuts.push_back({*match, !invert_});
      done = match->end;
      from = match->end;
      if (match->begin == match->end) {  // an empty match: go on after the next character
        from += from < text.size() ? CharacterLength(text[from]) : 1;
      }
    }
    if (done < text.size()) {
      cuts.push_back({{done, text.size()}, invert_});
    }
    return absl::OkStatus();
  }

  TextPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

}  // namespace

std::unique_ptr<PreTokenizerStep> MakeSplit(TextPattern pattern, SplitBehavior behavior,
                                            bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

}  // namespace shoal::worker
