#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/bytes.h"
#include "worker/ops/cpu/attention_blocks.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// delta = sum(d_out * out), which the softmax's gradient subtracts from every d_probability of the
// row.
template <typename T>
struct DeltaRow {
  SHOAL_INLINE void Run(const T* d_out, const T* out, int64_t columns, float* delta) {
    *delta = SumOf(columns,
                   [=](int64_t j) SHOAL_INLINE_LAMBDA { return Load(d_out + j) * Load(out + j); });
  }
};

// How scores follow from products of queries and keys. With `cap` 0 they are the products times
// `scale`; otherwise they are given as capped scores.
struct ScoreScale {
  float scale;
  float cap;
};

// One row: from scores and d_probabilities (d_out V^T) computes probabilities p and the gradients
// of the products,
//   d_scores = p * (d_probabilities - delta) * scale, times the cap's slope if there is a cap,
// zero for keys that are not `seen`, up to `columns`.
template <typename T, bool kCapped>
struct ScoreGradientRow {
  SHOAL_INLINE void Run(float* scores, float* d_probabilities, SeenKeys seen, int64_t columns,
                        ScoreScale of, float log_sum_exp, float delta, T* probabilities,
                        T* d_scores) {
    const float scale = of.scale;
    const int64_t whole = RoundUp(seen.visible, kVectorElements);
    for (int64_t j = 0; j < seen.hidden; ++j) {
      scores[j] = kHidden;
      d_probabilities[j] = 0;
    }
    for (int64_t j = seen.visible; j < whole; ++j) {
      scores[j] = kHidden;
      d_probabilities[j] = 0;
    }
#pragma omp simd
    for (int64_t j = 0; j < whole; ++j) {
      const float p =
          Exp(kCapped ? scores[j] - log_sum_exp : std::fma(scores[j], scale, -log_sum_exp));
      Store(p, probabilities + j);
      const float d_score = p * (d_probabilities[j] - delta) * scale;
      // A score that is hidden is far below -cap.
      const float slope =
          kCapped ? SoftCapSlope(scores[j] < -of.cap ? -of.cap : scores[j], of.cap) : 1.0f;
      Store(d_score * slope, d_scores + j);
    }
    const auto rest = static_cast<size_t>(columns - whole) * sizeof(T);
    std::memset(static_cast<void*>(probabilities + whole), 0, rest);
    std::memset(static_cast<void*>(d_scores + whole), 0, rest);
  }
};

template <typename T>
struct ConvertRow {
  SHOAL_INLINE void Run(const float* in, int64_t columns, T* out) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(in[j], out + j);
    }
  }
};

// Memory of one thread's blocks.
template <typename T>
struct BackwardBlocks {
  std::vector<T> queries;              // [rows, D]
  std::vector<T> d_out;                // [rows, D]
  std::vector<T> out;                  // [rows, D]
  std::vector<float> delta;            // [rows]
  std::vector<T> keys;                 // [padded length, D]
  std::vector<T> values;               // [padded length, D]
  std::vector<float> d_keys;           // [padded length, D]
  std::vector<float> d_values;         // [padded length, D]
  std::vector<float> d_queries;        // [rows, D]
  std::vector<float> scores;           // [rows, keys of the block]
  std::vector<float> d_probabilities;  // [rows, keys of the block]
  std::vector<T> probabilities;        // [rows, keys of the block]
  std::vector<T> d_scores;             // [rows, keys of the block]

  void Reserve(const AttentionBlocking& blocking, int64_t padded) {
    const auto block = static_cast<size_t>(blocking.rows * blocking.shape.head_dim);
    for (std::vector<T>* each : {&queries, &d_out, &out}) {
      each->resize(block);
    }
    d_queries.resize(block);
    delta.resize(static_cast<size_t>(blocking.rows));
    const size_t whole =
        std::max(keys.size(), static_cast<size_t>(padded * blocking.shape.head_dim));
    keys.resize(whole);
    values.resize(whole);
    d_keys.resize(whole);
    d_values.resize(whole);
    const auto square = static_cast<size_t>(blocking.rows * kKeyBlock);
    scores.resize(square);
    d_probabilities.resize(square);
    probabilities.resize(square);
    d_scores.resize(square);
  }
};

template <typename T>
class Backward {
 public:
  Backward(Context& context, ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
           const float* log_sum_exp, const AttentionBlocking& blocking, Matrix d_qkv)
      : context_(context),
        d_out_(d_out),
        qkv_(qkv),
        out_(out),
        lse_(log_sum_exp),
        blocking_(blocking),
        d_qkv_(d_qkv) {}

  // Each (sequence, kv head) is one task, which sums d_keys and d_values over query blocks in
  // order.
  void Run(std::span<const int32_t> cu_seqlens) {
    const int64_t sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
    const int64_t kv_heads = blocking_.shape.kv_heads;
    context_.pool.ParallelFor(sequences * kv_heads, 1, [&](int64_t begin, int64_t end) {
      thread_local BackwardBlocks<T> blocks;
      for (int64_t task = begin; task < end; ++task) {
        const auto s = static_cast<size_t>(task / kv_heads);
        RunHead(blocks, {cu_seqlens[s], cu_seqlens[s + 1]}, task % kv_heads);
      }
    });
    ZeroRowsFrom(context_, d_qkv_, cu_seqlens.back());
  }

 private:
  void RunHead(BackwardBlocks<T>& blocks, SequenceRange sequence, int64_t kv_head) {
    if (sequence.length() == 0) {
      return;  // blocks may have no memory yet
    }
    const AttentionShape& shape = blocking_.shape;
    const int64_t width = shape.head_dim;
    const int64_t padded = RoundUp(sequence.length(), kKeyUnit);
    blocks.Reserve(blocking_, padded);
    const int64_t key_column = shape.q_size() + kv_head * width;
    const int64_t value_column = key_column + shape.kv_size();
    CopyKeys<T>(qkv_, key_column, width, sequence, padded, blocks.keys.data());
    CopyKeys<T>(qkv_, value_column, width, sequence, padded, blocks.values.data());
    std::fill_n(blocks.d_keys.begin(), padded * width, 0.0f);
    std::fill_n(blocks.d_values.begin(), padded * width, 0.0f);
    for (int64_t first = 0; first < sequence.length(); first += blocking_.queries) {
      RunQueryBlock(blocks, sequence, kv_head, first);
    }
    for (int64_t i = 0; i < sequence.length(); ++i) {
      T* row = d_qkv_.row<T>(sequence.begin + i);
      Dispatch<ConvertRow<T>>(static_cast<const float*>(blocks.d_keys.data() + i * width), width,
                              row + key_column);
      Dispatch<ConvertRow<T>>(static_cast<const float*>(blocks.d_values.data() + i * width), width,
                              row + value_column);
    }
  }

  void RunQueryBlock(BackwardBlocks<T>& blocks, SequenceRange sequence, int64_t kv_head,
                     int64_t first) {
    const int64_t width = blocking_.shape.head_dim;
    const int64_t last = std::min(sequence.length(), first + blocking_.queries);
    const int64_t first_head = kv_head * blocking_.group;
    const int64_t token = sequence.begin + first;
    CopyQueryBlock<T>(blocking_, qkv_, first_head, token, sequence.end, blocks.queries.data());
    CopyQueryBlock<T>(blocking_, d_out_, first_head, token, sequence.end, blocks.d_out.data());
    CopyQueryBlock<T>(blocking_, out_, first_head, token, sequence.end, blocks.out.data());
    for (int64_t row = 0; row < blocking_.rows; ++row) {
      Dispatch<DeltaRow<T>>(static_cast<const T*>(blocks.d_out.data() + row * width),
                            static_cast<const T*>(blocks.out.data() + row * width), width,
                            &blocks.delta[static_cast<size_t>(row)]);
    }
    ForKeyBlocks(blocking_.FirstKey(first), last, [&](int64_t key, int64_t count, bool is_first) {
      AddKeyBlock(blocks, sequence, first_head, first, key, count, is_first);
    });
    StoreQueryBlock<T>(blocking_, blocks.d_queries.data(), nullptr, first_head, token, sequence.end,
                       d_qkv_);
  }

  void AddKeyBlock(BackwardBlocks<T>& blocks, SequenceRange sequence, int64_t first_head,
                   int64_t first, int64_t key, int64_t count, bool is_first) {
    const int64_t width = blocking_.shape.head_dim;
    const DType dtype = qkv_.dtype;
    const T* keys = blocks.keys.data() + key * width;
    const T* values = blocks.values.data() + key * width;
    const GemmShape scores = blocking_.Scores(dtype, count);
    context_.gemm.Run(scores, blocks.queries.data(), keys, blocks.scores.data());
    context_.gemm.Run(scores, blocks.d_out.data(), values, blocks.d_probabilities.data());
    for (int64_t row = 0; row < blocking_.rows; ++row) {
      const int64_t query = first + row % blocking_.queries;
      const bool exists = query < sequence.length();
      const SeenKeys seen = exists ? blocking_.Seen(query, key, count) : SeenKeys();
      const int64_t head = first_head + row / blocking_.queries;
      const float lse = exists ? lse_[head * qkv_.rows + sequence.begin + query] : 0.0f;
      float* const scores_row = blocks.scores.data() + row * count;
      blocking_.CapScores(scores_row, count);
      const auto run = [&]<bool kCapped>() {
        Dispatch<ScoreGradientRow<T, kCapped>>(
            scores_row, blocks.d_probabilities.data() + row * count, seen, count,
            ScoreScale{blocking_.scale, blocking_.softcap}, lse,
            blocks.delta[static_cast<size_t>(row)], blocks.probabilities.data() + row * count,
            blocks.d_scores.data() + row * count);
      };
      if (blocking_.softcap > 0) {
        run.template operator()<true>();
      } else {
        run.template operator()<false>();
      }
    }
    const GemmShape by_key{.m = count,
                           .n = width,
                           .k = blocking_.rows,
                           .a_stride = count,
                           .b_stride = width,
                           .c_stride = width,
                           .input = dtype,
                           .output = DType::kF32,
                           .transpose_a = true,
                           .accumulate = true};
    context_.gemm.Run(by_key, blocks.probabilities.data(), blocks.d_out.data(),
                      blocks.d_values.data() + key * width);
    context_.gemm.Run(by_key, blocks.d_scores.data(), blocks.queries.data(),
                      blocks.d_keys.data() + key * width);
    context_.gemm.Run(blocking_.WeightedSum(dtype, count, /*accumulate=*/!is_first),
                      blocks.d_scores.data(), keys, blocks.d_queries.data());
  }

  Context& context_;
  const ConstMatrix d_out_;
  const ConstMatrix qkv_;
  const ConstMatrix out_;
  const float* const lse_;
  const AttentionBlocking& blocking_;
  const Matrix d_qkv_;
};

}  // namespace

void AttentionBackward(Context& context, ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                       const float* log_sum_exp, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, Matrix d_qkv) {
  SHOAL_CHECK(qkv.columns == shape.qkv_size() && SameShape(qkv, d_qkv) && SameShape(d_out, out));
  SHOAL_CHECK(out.columns == shape.q_size() && out.rows == qkv.rows);
  SHOAL_CHECK(!cu_seqlens.empty() && cu_seqlens.back() <= qkv.rows);
  const AttentionBlocking blocking(shape);
  WithType(qkv.dtype, [&]<typename T>() {
    Backward<T>(context, d_out, qkv, out, log_sum_exp, blocking, d_qkv).Run(cu_seqlens);
  });
}

}  // namespace shoal::worker::cpu
