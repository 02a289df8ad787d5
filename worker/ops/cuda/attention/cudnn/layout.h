// Converts between the layouts of cuDNN's engines and ours.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::worker::cuda {

// Converts, for the first `used` of `tokens`, by_token[token * heads + head] to
// by_head[head * tokens + token], or back.
struct RowNumbers {
  float* by_token = nullptr;
  float* by_head = nullptr;
  int64_t used = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
};
cudaError_t ToByHead(cudaStream_t stream, const RowNumbers& numbers);
cudaError_t ToByToken(cudaStream_t stream, const RowNumbers& numbers);

// Concatenates row i of queries, keys and values into row i of `to`, turning back the queries' and
// keys' heads if there are positions. bf16; the three are dense, head_dim is a multiple of 8 and
// all addresses are multiples of 16 bytes.
struct JoinedRows {
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rows = 0;
  void* to = nullptr;
  int64_t to_stride = 0;               // elements, a multiple of 8
  const int32_t* positions = nullptr;  // [rows]; null: nothing is turned
  const float* cosines = nullptr;      // [*, head_dim / 2]
  const float* sines = nullptr;
};
cudaError_t JoinRows(cudaStream_t stream, const JoinedRows& rows);

}  // namespace shoal::worker::cuda
