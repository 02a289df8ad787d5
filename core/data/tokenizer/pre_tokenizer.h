// The pre-tokenizer of a tokenizer.json: cuts normalised text into the pieces that BPE merges
// within. Known: Sequence, ByteLevel, Split, Digits, Metaspace. Immutable once parsed; threads may
// share it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/tokenizer/regex.h"
#include "core/data/tokenizer/tokenizer_fields.h"

namespace shoal::worker {

// Text and the pieces it is cut into, in order and disjoint; text between pieces has been removed.
struct Pieces {
  std::string text;
  std::vector<TextRange> ranges;
  bool at_start = true;  // the text begins where the caller's text does
  bool continues =
      false;  // ... and goes on from earlier text: nothing is put before the first piece

  std::string_view piece(size_t i) const {
    return std::string_view(text).substr(ranges[i].begin, ranges[i].end - ranges[i].begin);
  }
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual absl::Status Apply(Pieces& pieces) const = 0;
};

class PreTokenizer {
 public:
  // `json` is the value of "pre_tokenizer", null included (then the whole text is one piece).
  static absl::StatusOr<PreTokenizer> Parse(const Json& json, const std::string& where);

  absl::Status Apply(Pieces& pieces) const;

 private:
  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
};

}  // namespace shoal::worker
