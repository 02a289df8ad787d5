// The decoder of a tokenizer.json: turns tokens back into text. Supports Sequence, ByteLevel,
// Replace (of a string), ByteFallback, Fuse, Strip, Metaspace. Immutable once parsed; threads may
// share it.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/json/json.h"

namespace shoal::worker {

using DecoderStep = absl::AnyInvocable<void(std::vector<std::string>& tokens) const>;

class Decoder {
 public:
  // `json` is the value of "decoder", possibly null (then tokens are joined by spaces, as Hugging
  // Face does).
  static absl::StatusOr<Decoder> Parse(const Json& json, const std::string& where);

  std::string Apply(std::vector<std::string> tokens) const;

 private:
  bool present_ = false;
  std::vector<DecoderStep> steps_;
};

}  // namespace shoal::worker
