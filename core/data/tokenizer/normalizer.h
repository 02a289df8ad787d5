// The normaliser of a tokenizer.json: rewrites text before it is cut into tokens. Supports
// Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD. Immutable once parsed; threads may share it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/tokenizer/tokenizer_fields.h"

namespace shoal::worker {

// Text never grows beyond this, whatever a file's rules say.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // `text` must be valid UTF-8. `continues`: the text continues earlier text, so nothing is put
  // before it.
  virtual absl::Status Apply(std::string& text, bool continues) const = 0;
};

class Normalizer {
 public:
  // `json` is the value of "normalizer", possibly null.
  static absl::StatusOr<Normalizer> Parse(const Json& json, const std::string& where);

  absl::Status Apply(std::string& text, bool continues) const;
  bool empty() const { return steps_.empty(); }

 private:
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

}  // namespace shoal::worker
