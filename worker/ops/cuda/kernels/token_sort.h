// Positions of tokens in order of their ids, and of position among equal ids: what the embedding's
// gradient walks through so that each row of the table is one thread's to add to.
//
// A radix sort, 9 bits of the id a pass and three launches each; few tokens, where launches would
// take longest, are counted against each other in one. Which place a token goes to depends on the
// tokens alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::worker::cuda {

struct SortedTokens {
  const int32_t* ids = nullptr;        // [count], ascending
  const int32_t* positions = nullptr;  // where each was; ascending among equal ids
};

// Up to this many are counted against each other.
inline constexpr int64_t kTokensToCount = 8192;

// Bytes of scratch for `count` tokens.
int64_t TokenSortScratch(int64_t count);

// tokens[count] in [0, vocabulary), count > 0. `sorted` points into the scratch (aligned to 16).
cudaError_t SortTokens(cudaStream_t stream, const int32_t* tokens, int64_t count,
                       int64_t vocabulary, void* scratch, SortedTokens* sorted);

}  // namespace shoal::worker::cuda
