// The pre-tokenizer of a tokenizer.json: cuts normalised text into the pieces that BPE merges
// within. Supports Sequence, ByteLevel, Split, Digits, Metaspace. Immutable once parsed; threads
// may share it.
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

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual absl::Status Apply(Pieces& pieces) const = 0;
};

class PreTokenizer {
 public:
  // `json` is the value of "pre_tokenizer", possibly null (then the whole text is one piece).
  static absl::StatusOr<PreTokenizer> Parse(const Json& json, const std::string& where);

  absl::Status Apply(Pieces& pieces) const;

 private:
  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
};

}  // namespace shoal::worker
