#include "core/plan/memory/attention_scratch.h"

#include "core/base/bytes.h"
#include "core/plan/memory/activation_bytes.h"

namespace shoal::plan {

bool MayFuseAttention(const Job& job) {
  return job.train.device == DeviceKind::kCuda && ComputeDType(job) == DType::kBF16 &&
         job.service.accumulate != Accumulate::kExact && !job.emulate.enabled();
}

int64_t FusedAttentionBytes(const ModelSpec& spec, int64_t tokens) {
  constexpr int64_t kAlignment = 256;  // of each piece, and of the first
  constexpr int64_t kSlackRows = 128;  // after the tokens: engines work tile by tile
  constexpr int64_t kHalf = 2;         // bytes of bf16
  constexpr int64_t kFloat = 4;
  const int64_t rows = MicrobatchRows(tokens) + kSlackRows;
  const Attention& attention = spec.attention();
  const auto piece = [&](int64_t columns, int64_t element) {
    return RoundUp(rows * columns * element, kAlignment);
  };
  int64_t bytes = kAlignment;
  bytes += 2 * piece(attention.heads, kFloat);  // log-sum-exp, and sums of d_out * out
  bytes += piece(attention.q_size(), kFloat) + piece(attention.q_size(), kHalf);
  bytes += 2 * piece(attention.kv_size(), kHalf);
  if (attention.heads != attention.kv_heads) {
    bytes += 2 * piece(attention.q_size(), kHalf);
  }
  return bytes;
}

}  // namespace shoal::plan
