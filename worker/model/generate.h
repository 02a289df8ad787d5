// Sampling from the model with a cache of keys and values: greedy, or by temperature from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/transformer.h"

namespace shoal::worker {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 0;  // 0: the most likely token each time
  uint64_t seed = 0;       // for temperature > 0; the same seed gives the same tokens
  std::vector<int32_t>
      stop_tokens;  // generation ends after one of these (which is part of the result)
  std::function<void(int32_t)> on_token;  // called with each new token as it comes; may be empty
};

// Returns only the new tokens. The prompt needs at least one token (including a
// beginning-of-sequence token if the model wants one); generation also ends at the model's
// max_positions. OutOfRange if the prompt leaves no room for a token.
absl::StatusOr<std::vector<int32_t>> Generate(Transformer& model, UnitSource& source,
                                              std::span<const int32_t> prompt,
                                              const GenerateOptions& options);

}  // namespace shoal::worker
