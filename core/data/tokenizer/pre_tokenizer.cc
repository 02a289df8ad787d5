#include "core/data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>

#include "core/base/status.h"
#include "core/data/tokenizer/normalizer.h"
#include "core/data/tokenizer/steps.h"
#include "core/data/tokenizer/text_pattern.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

// GPT-2's pattern, which ByteLevel applies with use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Rebuilds the text piece by piece: rewrite(index, piece, out) appends the rewritten piece.
template <typename Rewrite>
absl::Status RewritePieces(Pieces& pieces, const Rewrite& rewrite) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 2);
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    const size_t begin = text.size();
    rewrite(i, pieces.piece(i), text);
    pieces.ranges[i] = {begin, text.size()};
    if (text.size() > kMaxTextBytes) {
      return ResourceExhausted("text grows beyond {} bytes when cut into words", kMaxTextBytes);
    }
  }
  pieces.text = std::move(text);
  return absl::OkStatus();
}

// Whether a match is removed, becomes a piece, joins the piece before or after it, or forms one
// piece with adjacent matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

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

// The Split step: cuts each piece where the pattern matches. `invert`: text between matches counts
// as the match.
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

absl::Status PutSpaceBefore(Pieces& pieces) {
  return RewritePieces(pieces, [&](size_t i, std::string_view piece, std::string& out) {
    const bool suppressed = i == 0 && pieces.at_start && pieces.continues;
    if (!piece.starts_with(' ') && !suppressed) {
      out += ' ';
    }
    out += piece;
  });
}

absl::Status BytesToCharacters(Pieces& pieces) {
  return RewritePieces(pieces, [](size_t, std::string_view piece, std::string& out) {
    for (const char c : piece) {
      AppendUtf8(ByteCharacters()[static_cast<unsigned char>(c)], out);
    }
  });
}

enum class Prepend { kAlways, kFirst, kNever };

// Writes spaces as `replacement`, and puts one before pieces as `prepend` says.
PreTokenizerStep MakeMetaspace(std::string replacement, Prepend prepend) {
  return [replacement = std::move(replacement), prepend](Pieces& pieces) {
    return RewritePieces(pieces, [&](size_t i, std::string_view piece, std::string& out) {
      const bool first = i == 0 && pieces.at_start;
      const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
      const bool has_it = piece.starts_with(' ') || piece.starts_with(replacement);
      if (wanted && !has_it && !(first && pieces.continues)) {
        out += replacement;
      }
      for (const char c : piece) {
        if (c == ' ') {
          out += replacement;
        } else {
          out += c;
        }
      }
    });
  };
}

using PreTokenizerSteps = std::vector<PreTokenizerStep>;

absl::Status AddRegexSplit(std::string_view pattern, SplitBehavior behavior,
                           PreTokenizerSteps& steps) {
  SHOAL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  steps.push_back(MakeSplit(TextPattern(std::move(regex)), behavior, false));
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ParseBehavior(const JsonObject& object) {
  SHOAL_ASSIGN_OR_RETURN(const std::string name, object.String("behavior"));
  constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [known, behavior] : kBehaviors) {
    if (known == name) {
      return behavior;
    }
  }
  return InvalidArgument("{}: behavior '{}' is not supported", object.where(), name);
}

absl::Status ParseSplit(const JsonObject& object, PreTokenizerSteps& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "pattern", "behavior", "invert"}));
  SHOAL_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(object));
  SHOAL_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(object));
  SHOAL_ASSIGN_OR_RETURN(const bool invert, object.BoolOr("invert", false));
  steps.push_back(MakeSplit(std::move(pattern), behavior, invert));
  return absl::OkStatus();
}

absl::Status ParseByteLevel(const JsonObject& object, PreTokenizerSteps& steps) {
  SHOAL_RETURN_IF_ERROR(
      object.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  SHOAL_ASSIGN_OR_RETURN(const bool prefix_space, object.BoolOr("add_prefix_space", true));
  SHOAL_ASSIGN_OR_RETURN(const bool use_regex, object.BoolOr("use_regex", true));
  if (prefix_space) {
    steps.emplace_back(PutSpaceBefore);
  }
  if (use_regex) {
    SHOAL_RETURN_IF_ERROR(AddRegexSplit(kGpt2Pattern, SplitBehavior::kIsolated, steps));
  }
  steps.emplace_back(BytesToCharacters);
  return absl::OkStatus();
}

absl::Status ParseMetaspace(const JsonObject& object, PreTokenizerSteps& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}));
  SHOAL_ASSIGN_OR_RETURN(const std::string replacement, object.StringOr("replacement", "\u2581"));
  SHOAL_ASSIGN_OR_RETURN(const std::string scheme, object.StringOr("prepend_scheme", "always"));
  SHOAL_ASSIGN_OR_RETURN(const bool prefix_space, object.BoolOr("add_prefix_space", true));
  SHOAL_ASSIGN_OR_RETURN(const bool split, object.BoolOr("split", true));
  if (replacement.empty() || replacement.size() != CharacterLength(replacement[0])) {
    return InvalidArgument("{}: replacement '{}' is not one character", object.where(),
                           replacement);
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return InvalidArgument("{}: prepend_scheme '{}' is not supported", object.where(), scheme);
  }
  const Prepend prepend = !prefix_space || scheme == "never" ? Prepend::kNever
                          : scheme == "first"                ? Prepend::kFirst
                                                             : Prepend::kAlways;
  steps.push_back(MakeMetaspace(replacement, prepend));
  if (split) {
    steps.push_back(
        MakeSplit(TextPattern(replacement), SplitBehavior::kMergedWithNext, /*invert=*/false));
  }
  return absl::OkStatus();
}

absl::Status ParseStep(const JsonObject& object, const std::string& type,
                       PreTokenizerSteps& steps) {
  if (type == "ByteLevel") {
    return ParseByteLevel(object, steps);
  }
  if (type == "Split") {
    return ParseSplit(object, steps);
  }
  if (type == "Metaspace") {
    return ParseMetaspace(object, steps);
  }
  if (type == "Digits") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "individual_digits"}));
    SHOAL_ASSIGN_OR_RETURN(const bool individual, object.BoolOr("individual_digits", false));
    return AddRegexSplit("\\p{N}",
                         individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, steps);
  }
  return InvalidArgument(
      "{}: type '{}' is not supported; shoal knows Sequence, ByteLevel, Split, Digits and "
      "Metaspace",
      object.where(), type);
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Parse(const Json& json, const std::string& where) {
  PreTokenizer pre_tokenizer;
  SHOAL_RETURN_IF_ERROR(ParseSteps(json, where, "pretokenizers", ParseStep, pre_tokenizer.steps_));
  return pre_tokenizer;
}

absl::Status PreTokenizer::Apply(Pieces& pieces) const {
  for (const PreTokenizerStep& step : steps_) {
    SHOAL_RETURN_IF_ERROR(step(pieces));
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
