// What the normaliser, pre-tokenizer, decoder and post-processor of a tokenizer.json share: each is
// null, one step, or a Sequence of them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::worker {

inline constexpr int kMaxSequenceDepth = 8;

// Calls parse(step, type, out) for every step, in order. `list` is the key of a Sequence's steps.
template <typename Out>
absl::Status ParseSteps(const Json& json, const std::string& where, const char* list,
                        absl::Status (*parse)(const JsonObject&, const std::string&, Out&),
                        Out& out, int depth = 0) {
  if (json.is_null() && depth == 0) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, where));
  SHOAL_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type != "Sequence") {
    return parse(object, type, out);
  }
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", list}));
  SHOAL_ASSIGN_OR_RETURN(const Json* steps, object.Array(list));
  if (depth == kMaxSequenceDepth) {
    return InvalidArgument("{}: sequences are nested more than {} deep", where, kMaxSequenceDepth);
  }
  for (const Json& step : *steps) {
    SHOAL_RETURN_IF_ERROR(ParseSteps(step, where, list, parse, out, depth + 1));
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
