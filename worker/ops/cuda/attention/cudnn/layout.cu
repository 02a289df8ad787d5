#include "gpu/kernel.h"
#include "worker/ops/cuda/attention/cudnn/layout.h"

namespace shoal::worker::cuda {
namespace {

using gpu::Bits128;
using gpu::BlockX;
using gpu::Launch;
using gpu::ThreadIndex;

constexpr int kThreads = 256;
constexpr int kElements = sizeof(Bits128) / 2;  // bf16 at once

// A thread a number, neighbours in the layout by token.
template <bool kByHead>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) TurnKernel(const RowNumbers numbers) {
  const int64_t at = static_cast<int64_t>(BlockX()) * kThreads + ThreadIndex();
  if (at >= numbers.used * numbers.heads) {
    return;
  }
  const int64_t token = at / numbers.heads;
  const int64_t head = at - token * numbers.heads;
  float& by_head = numbers.by_head[head * numbers.tokens + token];
  if constexpr (kByHead) {
    by_head = numbers.by_token[at];
  } else {
    numbers.by_token[at] = by_head;
  }
}

// A block a row.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) JoinKernel(const JoinedRows rows) {
  const int64_t row = BlockX();
  const int64_t width = rows.width / kElements;
  const int64_t kv_width = rows.kv_width / kElements;
  auto* const to = static_cast<Bits128*>(rows.to) + row * (rows.to_stride / kElements);
  const auto* const queries = static_cast<const Bits128*>(rows.queries) + row * width;
  const auto* const keys = static_cast<const Bits128*>(rows.keys) + row * kv_width;
  const auto* const values = static_cast<const Bits128*>(rows.values) + row * kv_width;
  for (int64_t i = ThreadIndex(); i < width + 2 * kv_width; i += kThreads) {
    to[i] = i < width              ? queries[i]
            : i < width + kv_width ? keys[i - width]
                                   : values[i - width - kv_width];
  }
}

template <bool kByHead>
cudaError_t Turn(cudaStream_t stream, const RowNumbers& numbers) {
  const int64_t count = numbers.used * numbers.heads;
  return count == 0 ? cudaSuccess
                    : Launch(stream, {.x = (count + kThreads - 1) / kThreads}, kThreads, 0,
                             TurnKernel<kByHead>, numbers);
}

}  // namespace

cudaError_t ToByHead(cudaStream_t stream, const RowNumbers& numbers) {
  return Turn<true>(stream, numbers);
}

cudaError_t ToByToken(cudaStream_t stream, const RowNumbers& numbers) {
  return Turn<false>(stream, numbers);
}

cudaError_t JoinRows(cudaStream_t stream, const JoinedRows& rows) {
  return rows.rows == 0 ? cudaSuccess
                        : Launch(stream, {.x = rows.rows}, kThreads, 0, JoinKernel, rows);
}

}  // namespace shoal::worker::cuda
