// The pre-tokenizer of a tokenizer.json: cuts normalised text into the pieces that BPE merges
// within. Supports Sequence, ByteLevel, Split, Digits, Metaspace. Immutable once parsed; threads
// may share it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/json/json.h"
#include "core/data/tokenizer/regex.h"

namespace shoal::worker {

// Text and the pieces into which it is cut, in order and disjoint; text between pieces has been
// removed.
struct Pieces {
  std::string text;
  std::vector<TextRange> ranges;
  bool at_start = true;    // the text begins where the caller's text does
  bool continues = false;  // the text continues earlier text: nothing is put before the first piece

  std::string_view piece(size_t i) const {
    return std::string_view(text).substr(ranges[i].begin, ranges[i].end - ranges[i].begin);
  }
};

using PreTokenizerStep = absl::AnyInvocable<absl::Status(Pieces& pieces) const>;

class PreTokenizer {
 public:
  // `json` is the value of "pre_tokenizer", possibly null (then the whole text is one piece).
  static absl::StatusOr<PreTokenizer> Parse(const Json& json, const std::string& where);

  absl::Status Apply(Pieces& pieces) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace shoal::worker
