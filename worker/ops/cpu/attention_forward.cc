#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/bytes.h"
#include "worker/ops/cpu/attention_blocks.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// Updates one row of a block of scores, of which the keys `seen` take part: the running maximum (of
// scaled scores) and sum. Writes exp(score - maximum), zero for the other keys up to `columns` (a
// multiple of kVectorElements). Sets *correction to the factor for results of earlier blocks.
template <typename T>
struct SoftmaxRow {
  SHOAL_INLINE void Run(float* scores, SeenKeys seen, int64_t columns, float scale, float* maximum,
                        float* sum, T* probabilities, float* correction) {
    const int64_t whole = RoundUp(seen.visible, kVectorElements);
    for (int64_t j = 0; j < seen.hidden; ++j) {
      scores[j] = kHidden;
    }
    for (int64_t j = seen.visible; j < whole; ++j) {
      scores[j] = kHidden;
    }
    float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < whole; ++j) {
      largest = scores[j] > largest ? scores[j] : largest;
    }
    const float now = std::max(*maximum, largest * scale);
    const float total = SumOf(whole, [=](int64_t j) SHOAL_INLINE_LAMBDA {
      const float e = Exp(std::fma(scores[j], scale, -now));
      Store(e, probabilities + j);
      return e;
    });
    std::memset(static_cast<void*>(probabilities + whole), 0,
                static_cast<size_t>(columns - whole) * sizeof(T));
    const float factor = Exp(*maximum - now);
    *correction = factor;
    *sum = *sum * factor + total;
    *maximum = now;
  }
};

struct ScaleRow {
  SHOAL_INLINE void Run(float* row, int64_t columns, float factor) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      row[j] *= factor;
    }
  }
};

// The maximum before the first key: e^(this - anything) is (nearly) zero and multiplies zeros.
constexpr float kNoMaximum = -1e30f;

// Memory of one thread's blocks.
template <typename T>
struct ForwardBlocks {
  std::vector<T> queries;        // [rows, D]
  std::vector<T> keys;           // [padded length, D]
  std::vector<T> values;         // [padded length, D]
  std::vector<float> scores;     // [rows, keys of the block]
  std::vector<T> probabilities;  // [rows, keys of the block]
  std::vector<float> out;        // [rows, D]
  std::vector<float> maximum;    // [rows]
  std::vector<float> sum;        // [rows]; its inverse at the end

  void Reserve(const AttentionBlocking& blocking, int64_t padded) {
    const int64_t width = blocking.shape.head_dim;
    queries.resize(static_cast<size_t>(blocking.rows * width));
    keys.resize(static_cast<size_t>(std::max(static_cast<int64_t>(keys.size()), padded * width)));
    values.resize(keys.size());
    scores.resize(static_cast<size_t>(blocking.rows * kKeyBlock));
    probabilities.resize(scores.size());
    out.resize(static_cast<size_t>(blocking.rows * width));
    maximum.resize(static_cast<size_t>(blocking.rows));
    sum.resize(static_cast<size_t>(blocking.rows));
  }
};

template <typename T>
class Forward {
 public:
  Forward(Context& context, ConstMatrix qkv, const AttentionBlocking& blocking,
          std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp)
      : context_(context),
        qkv_(qkv),
        blocking_(blocking),
        cu_seqlens_(cu_seqlens),
        out_(out),
        lse_(log_sum_exp) {}

  void Run() {
    struct Task {
      SequenceRange sequence;
      int64_t kv_head;
      int64_t query_block;
    };
    std::vector<Task> tasks;
    for (size_t s = 0; s + 1 < cu_seqlens_.size(); ++s) {
      const SequenceRange sequence{cu_seqlens_[s], cu_seqlens_[s + 1]};
      for (int64_t kv_head = 0; kv_head < blocking_.shape.kv_heads; ++kv_head) {
        for (int64_t block = 0; block < blocking_.QueryBlocks(sequence.length()); ++block) {
          tasks.push_back({sequence, kv_head, block});
        }
      }
    }
    context_.pool.ParallelFor(
        static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
          thread_local ForwardBlocks<T> blocks;
          int64_t kv_head = -1;  // of the blocks' keys; consecutive tasks mostly share them
          int64_t sequence = -1;
          for (int64_t i = begin; i < end; ++i) {
            const Task& task = tasks[static_cast<size_t>(i)];
            if (task.kv_head != kv_head || task.sequence.begin != sequence) {
              kv_head = task.kv_head;
              sequence = task.sequence.begin;
              LoadKeys(blocks, task.sequence, kv_head);
            }
            RunBlock(blocks, task.sequence, kv_head, task.query_block);
          }
        });
    ZeroRowsFrom(context_, out_, cu_seqlens_.back());
  }

 private:
  void LoadKeys(ForwardBlocks<T>& blocks, SequenceRange sequence, int64_t kv_head) {
    const AttentionShape& shape = blocking_.shape;
    const int64_t padded = RoundUp(sequence.length(), kKeyUnit);
    blocks.Reserve(blocking_, padded);
    const int64_t column = shape.q_size() + kv_head * shape.head_dim;
    CopyKeys<T>(qkv_, column, shape.head_dim, sequence, padded, blocks.keys.data());
    CopyKeys<T>(qkv_, column + shape.kv_size(), shape.head_dim, sequence, padded,
                blocks.values.data());
  }

  void RunBlock(ForwardBlocks<T>& blocks, SequenceRange sequence, int64_t kv_head,
                int64_t query_block) {
    const int64_t first = query_block * blocking_.queries;  // within the sequence
    const int64_t last = std::min(sequence.length(), first + blocking_.queries);
    const int64_t first_head = kv_head * blocking_.group;
    CopyQueryBlock<T>(blocking_, qkv_, first_head, sequence.begin + first, sequence.end,
                      blocks.queries.data());
    std::fill(blocks.maximum.begin(), blocks.maximum.end(), kNoMaximum);
    std::fill(blocks.sum.begin(), blocks.sum.end(), 0.0f);
    ForKeyBlocks(blocking_.FirstKey(first), last, [&](int64_t key, int64_t count, bool is_first) {
      AddKeyBlock(blocks, first, key, count, is_first);
    });
    for (int64_t head = 0; head < blocking_.group; ++head) {
      float* lse = lse_ + (first_head + head) * qkv_.rows + sequence.begin + first;
      for (int64_t i = 0; i < last - first; ++i) {
        const auto row = static_cast<size_t>(head * blocking_.queries + i);
        lse[i] = blocks.maximum[row] + std::log(blocks.sum[row]);
      }
    }
    for (float& sum : blocks.sum) {
      sum = 1.0f / sum;
    }
    StoreQueryBlock<T>(blocking_, blocks.out.data(), blocks.sum.data(), first_head,
                       sequence.begin + first, sequence.end, out_);
  }

  // Keys [key, key + count) of the sequence, seen by queries from `first` on.
  void AddKeyBlock(ForwardBlocks<T>& blocks, int64_t first, int64_t key, int64_t count,
                   bool is_first) {
    const int64_t width = blocking_.shape.head_dim;
    context_.gemm.Run(blocking_.Scores(qkv_.dtype, count), blocks.queries.data(),
                      blocks.keys.data() + key * width, blocks.scores.data());
    for (int64_t row = 0; row < blocking_.rows; ++row) {
      const auto r = static_cast<size_t>(row);
      const int64_t query = first + row % blocking_.queries;
      float correction = 1;
      float* const scores = blocks.scores.data() + row * count;
      const float scale = blocking_.CapScores(scores, count);
      Dispatch<SoftmaxRow<T>>(scores, blocking_.Seen(query, key, count), count, scale,
                              &blocks.maximum[r], &blocks.sum[r],
                              blocks.probabilities.data() + row * count, &correction);
      if (!is_first) {
        Dispatch<ScaleRow>(blocks.out.data() + row * width, width, correction);
      }
    }
    context_.gemm.Run(blocking_.WeightedSum(qkv_.dtype, count, /*accumulate=*/!is_first),
                      blocks.probabilities.data(), blocks.values.data() + key * width,
                      blocks.out.data());
  }

  Context& context_;
  const ConstMatrix qkv_;
  const AttentionBlocking& blocking_;
  const std::span<const int32_t> cu_seqlens_;
  const Matrix out_;
  float* const lse_;
};

}  // namespace

void AttentionForward(Context& context, ConstMatrix qkv, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp) {
  SHOAL_CHECK(qkv.columns == shape.qkv_size() && out.columns == shape.q_size() &&
              out.rows == qkv.rows);
  SHOAL_CHECK(!cu_seqlens.empty() && cu_seqlens.back() <= qkv.rows && out.dtype == qkv.dtype);
  const AttentionBlocking blocking(shape);
  WithType(qkv.dtype, [&]<typename T>() {
    Forward<T>(context, qkv, blocking, cu_seqlens, out, log_sum_exp).Run();
  });
}

namespace {

template <typename T>
struct DotRow {
  SHOAL_INLINE void Run(const T* a, const T* b, int64_t columns, float* result) {
    *result =
        SumOf(columns, [=](int64_t j) SHOAL_INLINE_LAMBDA { return Load(a + j) * Load(b + j); });
  }
};

template <typename T>
struct AddScaledRow {
  SHOAL_INLINE void Run(const T* from, int64_t columns, float factor, float* to) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      to[j] = std::fma(Load(from + j), factor, to[j]);
    }
  }
};

}  // namespace

void AttentionDecode(Context& context, ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                     const AttentionShape& shape, Matrix out) {
  SHOAL_CHECK(q.columns == shape.q_size() && keys.columns == shape.kv_size() &&
              keys.rows == values.rows);
  const AttentionBlocking blocking(shape);
  const int64_t length = keys.rows;
  const int64_t width = shape.head_dim;
  WithType(q.dtype, [&]<typename T>() {
    ForRows(context, shape.heads, length * width, [&](int64_t begin, int64_t end) {
      std::vector<float> scores(static_cast<size_t>(RoundUp(length, kVectorElements)));
      std::vector<float> sums(static_cast<size_t>(width));
      for (int64_t head = begin; head < end; ++head) {
        const int64_t column = head / blocking.group * width;
        const T* query = q.row<T>(0) + head * width;
        for (int64_t t = 0; t < length; ++t) {
          Dispatch<DotRow<T>>(query, keys.row<T>(t) + column, width,
                              &scores[static_cast<size_t>(t)]);
        }
        const float scale = blocking.CapScores(scores.data(), length);
        float maximum = kNoMaximum;
        float sum = 0;
        float correction = 1;
        Dispatch<SoftmaxRow<float>>(scores.data(), SeenKeys{.hidden = 0, .visible = length},
                                    RoundUp(length, kVectorElements), scale, &maximum, &sum,
                                    scores.data(), &correction);
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t t = 0; t < length; ++t) {
          Dispatch<AddScaledRow<T>>(values.row<T>(t) + column, width,
                                    scores[static_cast<size_t>(t)] / sum, sums.data());
        }
        T* result = out.row<T>(0) + head * width;
        for (int64_t j = 0; j < width; ++j) {
          Store(sums[static_cast<size_t>(j)], result + j);
        }
      }
    });
  });
}

}  // namespace shoal::worker::cpu
