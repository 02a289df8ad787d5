// The normaliser of a tokenizer.json: rewrites text before it is cut into tokens. Supports
// Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD. Immutable once parsed; threads may share it.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/json/json.h"

namespace shoal::worker {

// Text never grows beyond this, whatever a file's rules say.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;

// Rewrites valid UTF-8. `continues`: the text continues earlier text, so nothing is put before it.
using NormalizerStep = absl::AnyInvocable<absl::Status(std::string& text, bool continues) const>;

class Normalizer {
 public:
  // `json` is the value of "normalizer", possibly null.
  static absl::StatusOr<Normalizer> Parse(const Json& json, const std::string& where);

  absl::Status Apply(std::string& text, bool continues) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace shoal::worker
