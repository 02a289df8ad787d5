// Sorts positions of tokens by their ids, and by position among equal ids: the embedding's gradient
// walks through them so that only one thread adds to each row of the table.
//
// A radix sort, 9 bits of the id per pass and three launches each; few tokens, where launches would
// take longest, are ranked by comparing all of them in one launch. A token's place depends only on
// the tokens.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::worker::cuda {

struct SortedTokens {
  const int32_t* ids = nullptr;        // [count], ascending
  const int32_t* positions = nullptr;  // where each was; ascending among equal ids
};

// Up to this many are compared with each other.
inline constexpr int64_t kTokensToCount = 8192;

// Returns the bytes of scratch for `count` tokens.
int64_t TokenSortScratch(int64_t count);

// tokens[count] in [0, vocabulary), count > 0. `sorted` points into the scratch (aligned to 16).
cudaError_t SortTokens(cudaStream_t stream, const int32_t* tokens, int64_t count,
                       int64_t vocabulary, void* scratch, SortedTokens* sorted);

}  // namespace shoal::worker::cuda
