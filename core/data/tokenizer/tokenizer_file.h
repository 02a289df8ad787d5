// Reads the parts of a tokenizer.json that are plain data: the BPE model, the added tokens and the
// post-processor.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/json/json.h"
#include "core/data/tokenizer/added_tokens.h"
#include "core/data/tokenizer/bpe.h"

namespace shoal::worker {

// All ids are below this; larger vocabularies are not in use, and a hostile file could ask for any
// amount of memory.
inline constexpr int64_t kMaxTokenId = 1 << 21;

absl::StatusOr<BpeModel> ParseBpeModel(const Json& json, const std::string& where);

// `json` is the value of "added_tokens", possibly null.
absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Json& json,
                                                         const std::string& where);

// What the post-processor puts around one text.
struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};
absl::StatusOr<PostProcessor> ParsePostProcessor(const Json& json, const std::string& where);

}  // namespace shoal::worker
