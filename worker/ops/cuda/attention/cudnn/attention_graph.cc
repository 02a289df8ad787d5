#include "worker/ops/cuda/attention/cudnn/attention_graph.h"

namespace shoal::worker::cuda {
namespace {

using Tensor = CudnnGraph::Tensor;

// Shared by both passes.
class AttentionBuilder {
 public:
  AttentionBuilder(const Cudnn& cudnn, const AttentionBounds& bounds)
      : bounds_(bounds), graph_(cudnn) {
    query_counts_ = Counts(AttentionTensor::kQueryCounts);
    key_counts_ = Counts(AttentionTensor::kKeyCounts);
    qkv_offsets_ = Offsets(AttentionTensor::kQkvOffsets);
    out_offsets_ = Offsets(AttentionTensor::kOutOffsets);
    head_offsets_ = Offsets(AttentionTensor::kHeadOffsets);
    queries_ = InRows(AttentionTensor::kQueries, bounds.heads, bounds.qkv_stride, qkv_offsets_);
    out_ = InRows(AttentionTensor::kOut, bounds.heads, bounds.out_stride, out_offsets_);
    log_sum_exp_ = OfHeads(AttentionTensor::kLogSumExp);
    scale_ = graph_.ByValue(AttentionTensor::kScale, CUDNN_DATA_FLOAT);
    masked_ = graph_.ByValue(AttentionTensor::kMasked, CUDNN_DATA_FLOAT);
  }

  CudnnGraph Forward() && {
    const Tensor scores = MaskFuture(Scores());
    const Tensor maximum = graph_.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, PerRow());
    const Tensor weights = graph_.Pointwise(CUDNN_POINTWISE_EXP,
                                            graph_.Pointwise(CUDNN_POINTWISE_SUB, scores, maximum));
    const Tensor sum = graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, weights, PerRow());
    graph_.Pointwise(CUDNN_POINTWISE_ADD, maximum, graph_.Pointwise(CUDNN_POINTWISE_LOG, sum),
                     CUDNN_DATA_FLOAT, log_sum_exp_);
    const Tensor probabilities =
        graph_.Pointwise(CUDNN_POINTWISE_DIV, weights, sum, CUDNN_DATA_BFLOAT16);
    const Tensor values =
        InRows(AttentionTensor::kValues, bounds_.kv_heads, bounds_.qkv_stride, qkv_offsets_);
    graph_.Multiply(probabilities, values, {.rows = query_counts_, .terms = key_counts_}, out_);
    return std::move(graph_);
  }

  CudnnGraph Backward() && {
    const Tensor d_out = InRows(AttentionTensor::kDOut, bounds_.heads, bounds_.d_out_stride,
                                Offsets(AttentionTensor::kDOutOffsets));
    const Tensor delta = Delta(d_out);
    const Tensor scores = graph_.Pointwise(CUDNN_POINTWISE_SUB, Scores(), log_sum_exp_);
    const Tensor probabilities = graph_.Pointwise(CUDNN_POINTWISE_EXP, MaskFuture(scores));
    const Tensor kv_offsets = Offsets(AttentionTensor::kKvOffsets);
    MultiplyIntoKeys(graph_.Transpose(probabilities, CUDNN_DATA_BFLOAT16), d_out, kv_offsets,
                     AttentionTensor::kDValues, AttentionTensor::kDValuesOfHeads);

    const Tensor d_probabilities = graph_.Multiply(d_out, Turned(AttentionTensor::kValues),
                                                   {.rows = query_counts_, .columns = key_counts_});
    const Tensor d_scores = graph_.Pointwise(
        CUDNN_POINTWISE_MUL,
        graph_.Pointwise(CUDNN_POINTWISE_MUL,
                         graph_.Pointwise(CUDNN_POINTWISE_SUB, d_probabilities, delta),
                         probabilities),
        scale_);
    MultiplyIntoKeys(graph_.Transpose(d_scores, CUDNN_DATA_BFLOAT16), queries_, kv_offsets,
                     AttentionTensor::kDKeys, AttentionTensor::kDKeysOfHeads);

    const Dimensions dimensions = OfQueries();
    const Dimensions strides = DenseRows(bounds_.heads);
    const Tensor offsets = Offsets(AttentionTensor::kQueryOffsets);
    const Tensor sum = graph_.InMemory(AttentionTensor::kDQueriesSum, CUDNN_DATA_FLOAT, dimensions,
                                       strides, offsets);
    graph_.Multiply(d_scores, graph_.Transpose(keys_, CUDNN_DATA_FLOAT),
                    {.rows = query_counts_, .terms = key_counts_}, sum);
    graph_.Pointwise(CUDNN_POINTWISE_IDENTITY, sum, CUDNN_DATA_FLOAT,
                     graph_.InMemory(AttentionTensor::kDQueries, CUDNN_DATA_BFLOAT16, dimensions,
                                     strides, offsets));
    return std::move(graph_);
  }

 private:
  Tensor Counts(int64_t id) {
    const Dimensions dimensions = {bounds_.sequences, 1, 1, 1};
    return graph_.InMemory(id, CUDNN_DATA_INT32, dimensions, DenseStrides(dimensions));
  }
  Tensor Offsets(int64_t id) {
    const Dimensions dimensions = {bounds_.sequences + 1, 1, 1, 1};
    return graph_.InMemory(id, CUDNN_DATA_INT32, dimensions, DenseStrides(dimensions));
  }
  Dimensions OfQueries() const {
    return {bounds_.sequences, bounds_.heads, bounds_.longest, bounds_.head_dim};
  }
  Dimensions PerRow() const { return {bounds_.sequences, bounds_.heads, bounds_.longest, 1}; }
  Dimensions Rows(int64_t stride) const {
    return {bounds_.longest * stride, bounds_.head_dim, stride, 1};
  }
  Dimensions DenseRows(int64_t heads) const { return Rows(heads * bounds_.head_dim); }

  // Concatenated heads in each token's row.
  Tensor InRows(int64_t id, int64_t heads, int64_t stride, Tensor offsets) {
    return graph_.InMemory(id, CUDNN_DATA_BFLOAT16,
                           {bounds_.sequences, heads, bounds_.longest, bounds_.head_dim},
                           Rows(stride), offsets);
  }
  // Transposed keys or values, for products that sum over a head's elements.
  Tensor Turned(int64_t id) {
    return graph_.InMemory(
        id, CUDNN_DATA_BFLOAT16,
        {bounds_.sequences, bounds_.kv_heads, bounds_.head_dim, bounds_.longest},
        {bounds_.longest * bounds_.qkv_stride, bounds_.head_dim, 1, bounds_.qkv_stride},
        qkv_offsets_);
  }
  Tensor OfHeads(int64_t id) {
    return graph_.InMemory(id, CUDNN_DATA_FLOAT, PerRow(),
                           {bounds_.longest * bounds_.heads, 1, bounds_.heads, 1}, head_offsets_);
  }

  // Scaled; -infinity after a sequence's end.
  Tensor Scores() {
    keys_ = Turned(AttentionTensor::kKeys);
    const Tensor scores = graph_.Pointwise(
        CUDNN_POINTWISE_MUL,
        graph_.Multiply(queries_, keys_, {.rows = query_counts_, .columns = key_counts_}), scale_);
    const Tensor row = graph_.Index(scores, 2);
    const Tensor column = graph_.Index(scores, 3);
    const Tensor within = graph_.Pointwise(
        CUDNN_POINTWISE_LOGICAL_AND,
        graph_.Pointwise(CUDNN_POINTWISE_CMP_LT, row, query_counts_, CUDNN_DATA_BOOLEAN),
        graph_.Pointwise(CUDNN_POINTWISE_CMP_LT, column, key_counts_, CUDNN_DATA_BOOLEAN),
        CUDNN_DATA_BOOLEAN);
    return graph_.Select(within, scores, masked_);
  }
  Tensor MaskFuture(Tensor scores) {
    const Tensor row = graph_.Index(scores, 2);
    const Tensor column = graph_.Index(scores, 3);
    return graph_.Select(graph_.Pointwise(CUDNN_POINTWISE_CMP_GE, row, column, CUDNN_DATA_BOOLEAN),
                         scores, masked_);
  }
  // sum(d_out * out) of each row.
  Tensor Delta(Tensor d_out) {
    const Tensor sum = graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD,
                                     graph_.Pointwise(CUDNN_POINTWISE_MUL, d_out, out_), PerRow());
    return graph_.Pointwise(CUDNN_POINTWISE_MUL, sum,
                            graph_.ByValue(AttentionTensor::kOne, CUDNN_DATA_FLOAT),
                            CUDNN_DATA_FLOAT, OfHeads(AttentionTensor::kDelta));
  }
  // The gradient of keys or values: of each head, then summed over heads that share them.
  void MultiplyIntoKeys(Tensor turned, Tensor rows, Tensor offsets, int64_t id, int64_t of_heads) {
    const Tensor to = InRows(id, bounds_.kv_heads, bounds_.kv_heads * bounds_.head_dim, offsets);
    const CudnnGraph::Counts counts = {.rows = key_counts_, .terms = query_counts_};
    if (bounds_.heads == bounds_.kv_heads) {
      graph_.Multiply(turned, rows, counts, to);
      return;
    }
    // The engines multiply the offsets by the number of heads that share a key.
    const Tensor each = InRows(of_heads, bounds_.heads, bounds_.heads * bounds_.head_dim, offsets);
    graph_.Multiply(turned, rows, counts, each);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, each,
                  {bounds_.sequences, bounds_.kv_heads, bounds_.longest, bounds_.head_dim}, to);
  }

  const AttentionBounds bounds_;
  CudnnGraph graph_;
  Tensor query_counts_;
  Tensor key_counts_;
  Tensor qkv_offsets_;
  Tensor out_offsets_;
  Tensor head_offsets_;
  Tensor queries_;
  Tensor keys_ = nullptr;
  Tensor out_;
  Tensor log_sum_exp_;
  Tensor scale_;
  Tensor masked_;
};

}  // namespace

CudnnGraph AttentionForwardGraph(const Cudnn& cudnn, const AttentionBounds& bounds) {
  return AttentionBuilder(cudnn, bounds).Forward();
}

CudnnGraph AttentionBackwardGraph(const Cudnn& cudnn, const AttentionBounds& bounds) {
  return AttentionBuilder(cudnn, bounds).Backward();
}

}  // namespace shoal::worker::cuda
