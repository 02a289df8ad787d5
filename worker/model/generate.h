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
  // With a temperature, of which tokens one is drawn: the most likely ones, so many (0: all), and
  // of those the fewest whose probabilities add up to top_p.
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;  // for temperature > 0; the same seed gives the same tokens
  std::vector<int32_t>
      stop_tokens;  // generation ends after one of these (which is part of the result)
  // Called with each new token as it comes; false ends generation. May be empty.
  std::function<bool(int32_t)> on_token;
};

// Returns only the new tokens. The prompt needs at least one token (including a
// beginning-of-sequence token if the model wants one); generation also ends at the model's
// max_positions. OutOfRange if the prompt leaves no room for a token.
absl::StatusOr<std::vector<int32_t>> Generate(Transformer& model, UnitSource& source,
                                              std::span<const int32_t> prompt,
                                              const GenerateOptions& options);

}  // namespace shoal::worker
