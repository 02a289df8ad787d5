#include "gpu/blocks.h"
#include "gpu/kernel.h"
#include "worker/ops/cuda/attention/cudnn/layout.h"
#include "worker/ops/cuda/kernels/rotation.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = 256;

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

// Heads of a token that a thread joins, turned by the same angles.
constexpr int kHeads = 4;

struct Work {
  int64_t threads;
  uint32_t chunks;  // of half a head
  uint32_t groups;  // of kHeads heads
};

// Where a head of a token is: queries, keys and values follow each other.
SHOAL_DEVICE const Bf16* HeadOf(const JoinedRows& rows, int64_t token, int64_t head) {
  const void* from = rows.queries;
  int64_t heads = rows.heads;
  if (head >= heads) {
    head -= heads;
    heads = rows.kv_heads;
    from = head < heads ? rows.keys : rows.values;
    head -= head < heads ? 0 : heads;
  }
  return static_cast<const Bf16*>(from) + (token * heads + head) * rows.head_dim;
}

// The pairs (j, j + D/2) of one chunk of j, of a group of heads of one token.
template <int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 3) JoinKernel(const JoinedRows rows, Work work) {
  const int64_t index = static_cast<int64_t>(BlockX()) * kThreads + ThreadIndex();
  if (index >= work.threads) {
    return;
  }
  const auto linear = static_cast<uint32_t>(index);
  const uint32_t chunk = linear % work.chunks;
  const uint32_t group = linear / work.chunks % work.groups;
  const uint32_t token = linear / work.chunks / work.groups;
  const int64_t half = rows.head_dim / 2;
  const int64_t column = int64_t{chunk} * kCount;
  const int64_t heads = rows.heads + 2 * rows.kv_heads;
  const int64_t turned = rows.positions == nullptr ? 0 : rows.heads + rows.kv_heads;

  Packed<Bf16, kCount> firsts[kHeads];
  Packed<Bf16, kCount> seconds[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int64_t head = int64_t{group} * kHeads + i;
    if (head < heads) {
      const Bf16* const from = HeadOf(rows, token, head);
      firsts[i] = LoadPacked<Bf16, kCount>(from, column);
      seconds[i] = LoadPacked<Bf16, kCount>(from, column + half);
    }
  }
  Angles<kCount> angles = {};
  if (int64_t{group} * kHeads < turned) {
    angles = LoadAngles<kCount>(rows.cosines, rows.sines, rows.positions[token] * half + column,
                                /*back=*/true);
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int64_t head = int64_t{group} * kHeads + i;
    if (head < heads) {
      if (head < turned) {
        Turn(angles, firsts[i], seconds[i]);
      }
      const int64_t to = token * rows.to_stride + head * rows.head_dim + column;
      StorePacked<Bf16>(firsts[i], rows.to, to);
      StorePacked<Bf16>(seconds[i], rows.to, to + half);
    }
  }
}

template <int kCount>
cudaError_t Join(cudaStream_t stream, const JoinedRows& rows) {
  const int64_t chunks = rows.head_dim / 2 / kCount;
  const int64_t groups = gpu::DivideUp(rows.heads + 2 * rows.kv_heads, kHeads);
  const int64_t threads = rows.rows * groups * chunks;
  if (threads > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  return Launch(stream, {.x = gpu::DivideUp(threads, kThreads)}, kThreads, 0, JoinKernel<kCount>,
                rows, Work{threads, static_cast<uint32_t>(chunks), static_cast<uint32_t>(groups)});
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
  if (rows.rows == 0) {
    return cudaSuccess;
  }
  return rows.head_dim % 16 == 0 ? Join<8>(stream, rows) : Join<4>(stream, rows);
}

}  // namespace shoal::worker::cuda
