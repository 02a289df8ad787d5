#include "worker/loss/linear_cross_entropy.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/plan/memory/loss_chunk.h"

namespace shoal::worker {
void LinearCrossEntropy(Ops& ops, ConstMatrix x, ConstMatrix weight, const Targets& targets,
                        float scale, float softcap, const CrossEntropyBuffers& buffers, Matrix d_x,
                        const MatrixGradient& d_weight, const LossOut& loss) {
  const int64_t vocabulary = weight.rows;
  const int64_t hidden = weight.columns;
  const bool wants_gradient = d_x.data != nullptr;
  SHOAL_CHECK(x.columns == hidden && buffers.logits.columns == vocabulary);
  SHOAL_CHECK(wants_gradient || d_weight.sums == nullptr);
  const int64_t chunk_rows = buffers.logits.rows;
  if (wants_gradient && targets.count() < d_x.rows) {
    ops.Zero(d_x);
  }
  const Matrix d_matrix = Matrix::Dense(d_weight.sums, DType::kF32, vocabulary, hidden);
  if (d_weight.empty && targets.count() == 0) {
    ops.Zero(d_matrix);
  }
  for (int64_t begin = 0; begin < targets.count(); begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, targets.count() - begin);
    const int64_t rows = RoundUp(count, plan::LossChunk::kRowUnit);
    const int64_t first = targets.host_rows[static_cast<size_t>(begin)];
    const int64_t last = targets.host_rows[static_cast<size_t>(begin + count - 1)];
    // A chunk without gaps is a piece of X as it is.
    const bool contiguous = rows == count && last - first == count - 1;
    ConstMatrix chunk = x.Rows(first, count);
    if (!contiguous) {
      const Matrix gathered = buffers.x.Rows(0, rows);
      ops.GatherRows(x, targets.rows + begin, count, gathered);
      chunk = gathered;
    }
    const Matrix logits = buffers.logits.Rows(0, rows);
    ops.Matmul({.a = chunk, .b = weight, .c = logits, .transpose_b = true});
    const Matrix d_logits = wants_gradient ? buffers.d_logits.Rows(0, rows) : Matrix{};
    ops.SoftmaxCrossEntropy(logits, targets.Labelled(begin, count), scale, softcap, d_logits,
                            loss.From(begin));
    if (!wants_gradient) {
      continue;
    }
    const Matrix d_chunk = contiguous ? d_x.Rows(first, count) : buffers.d_x.Rows(0, rows);
    ops.Matmul({.a = d_logits, .b = weight, .c = d_chunk});
    if (!contiguous) {
      ops.ScatterRows(d_chunk, targets.rows + begin, count, d_x);
    }
    if (d_weight.sums != nullptr) {
      ops.Matmul({.a = d_logits,
                  .b = chunk,
                  .c = d_matrix,
                  .transpose_a = true,
                  .accumulate = begin > 0 || !d_weight.empty});
    }
  }
}

}  // namespace shoal::worker
