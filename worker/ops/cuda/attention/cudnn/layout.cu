#include "core/gpu/kernel/blocks.h"
#include "core/gpu/kernel/kernel.h"
#include "worker/ops/cuda/attention/cudnn/layout.h"
#include "worker/ops/cuda/kernels/rotation.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per number, in the order of the layout by token.
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

// Returns where a head of a token is: queries come first, then keys, then values.
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

// One thread handles the pairs (j, j + D/2) of one chunk of j, for a group of heads of one token.
template <int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 3) JoinKernel(const JoinedRows rows, HeadWork work) {
  const int64_t index = static_cast<int64_t>(BlockX()) * kThreads + ThreadIndex();
  if (index >= work.threads) {
    return;
  }
  const HeadPart part = PartOf(work, index, kCount);
  const int64_t half = rows.head_dim / 2;
  const int64_t heads = rows.heads + 2 * rows.kv_heads;
  const int64_t turned = rows.positions == nullptr ? 0 : rows.heads + rows.kv_heads;

  Packed<Bf16, kCount> firsts[kHeadsOfThread];
  Packed<Bf16, kCount> seconds[kHeadsOfThread];
#pragma unroll
  for (int i = 0; i < kHeadsOfThread; ++i) {
    const int64_t head = part.head + i;
    if (head < heads) {
      const Bf16* const from = HeadOf(rows, part.token, head);
      firsts[i] = LoadPacked<Bf16, kCount>(from, part.column);
      seconds[i] = LoadPacked<Bf16, kCount>(from, part.column + half);
    }
  }
  Angles<kCount> angles = {};
  if (part.head < turned) {
    angles = LoadAngles<kCount>(rows.cosines, rows.sines,
                                rows.positions[part.token] * half + part.column, /*back=*/true);
  }
#pragma unroll
  for (int i = 0; i < kHeadsOfThread; ++i) {
    const int64_t head = part.head + i;
    if (head < heads) {
      if (head < turned) {
        Turn(angles, firsts[i], seconds[i]);
      }
      const int64_t to = part.token * rows.to_stride + head * rows.head_dim + part.column;
      StorePacked<Bf16>(firsts[i], rows.to, to);
      StorePacked<Bf16>(seconds[i], rows.to, to + half);
    }
  }
}

template <int kCount>
cudaError_t Join(cudaStream_t stream, const JoinedRows& rows) {
  const HeadWork work =
      HeadWork::Of(rows.rows, rows.heads + 2 * rows.kv_heads, rows.head_dim / 2, kCount);
  if (work.threads > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  return Launch(stream, {.x = gpu::DivideUp(work.threads, kThreads)}, kThreads, 0,
                JoinKernel<kCount>, rows, work);
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
