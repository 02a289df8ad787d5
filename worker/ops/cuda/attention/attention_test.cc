// Attention on a GPU, fake and real, against the oracle in double precision and the CPU's
// gradients in fp32.
#include "worker/ops/cuda/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/gpu/testing/gpu.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/attention/testing/fused.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker::cuda {
namespace {

using oracle::Doubles;
using oracle::Tensor;

struct Case {
  DType dtype;
  AttentionShape shape;
  std::vector<int32_t> cu_seqlens;
  int64_t rows;              // padding included
  int64_t more_columns = 0;  // of the matrices, besides attention's
};

struct Result {
  Tensor out;
  Tensor d_qkv;
  std::vector<float> log_sum_exp;
};

// A GPU and the test's memory on it; matrices may be columns of wider ones.
class Gpu {
 public:
  Gpu(bool usable, bool with_fused) : usable_(usable) {
    if (usable_) {
      device_ = *MakeCudaDevice({});
      stream_ = device_->NewStream();
      AttentionOptions options;
      if (with_fused) {
        absl::StatusOr<std::unique_ptr<FusedAttention>> fused =
            FusedAttentionForTest(*device_, *stream_);
        if (fused.ok()) {
          options = {.fused = *std::move(fused), .deterministic = false};
        }
      }
      attention_ = std::make_unique<Attention>(*device_, *stream_, std::move(options));
    }
  }
  bool usable() const { return usable_; }
  Attention& attention() { return *attention_; }

  Matrix Put(Tensor& values, int64_t more_columns = 0) {
    const Matrix from = values.view();
    const Matrix to = Poisoned(from.dtype, from.rows, from.columns, more_columns);
    for (int64_t row = 0; row < from.rows; ++row) {
      stream_->Copy(Row(to, row), Row(from, row), from.columns * SizeOf(from.dtype));
    }
    return to;
  }
  // Null for none. The stream reads `values` until the next Take.
  template <typename T>
  const T* PutArray(const std::vector<T>& values) {
    if (values.empty()) {
      return nullptr;
    }
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    buffers_.push_back(*device_->Allocate(bytes));
    stream_->Copy(buffers_.back().data(), values.data(), bytes);
    return reinterpret_cast<const T*>(buffers_.back().data());
  }
  // Full of NaN.
  Matrix Poisoned(DType dtype, int64_t rows, int64_t columns, int64_t more_columns = 0) {
    const int64_t stride = columns + more_columns;
    buffers_.push_back(*device_->Allocate(rows * stride * SizeOf(dtype)));
    stream_->Fill(buffers_.back().data(), std::byte{0xFF}, buffers_.back().bytes());
    return {buffers_.back().data(), dtype, rows, columns, stride};
  }
  Tensor Take(const Matrix& from) {
    Tensor values(from.dtype, from.rows, from.columns);
    const Matrix to = values.view();
    for (int64_t row = 0; row < from.rows; ++row) {
      stream_->Copy(Row(to, row), Row(from, row), from.columns * SizeOf(from.dtype));
    }
    EXPECT_TRUE(stream_->Synchronize().ok());
    return values;
  }

 private:
  static std::byte* Row(const Matrix& matrix, int64_t row) {
    return static_cast<std::byte*>(matrix.data) + row * matrix.stride * SizeOf(matrix.dtype);
  }

  bool usable_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Attention> attention_;
  std::vector<Buffer> buffers_;
};

// The angles that turned the case's queries and keys; empty if heads have no pairs.
struct Angles {
  explicit Angles(const Case& c) {
    constexpr int kPositions = 50;
    if (c.shape.head_dim % 2 != 0) {
      return;
    }
    for (int32_t row = 0; row < c.rows; ++row) {
      positions.push_back(7 * row % kPositions);
    }
    for (int64_t i = 0; i < kPositions * c.shape.head_dim / 2; ++i) {
      cosines.push_back(std::cos(0.37F * static_cast<float>(i)));
      sines.push_back(std::sin(0.37F * static_cast<float>(i)));
    }
  }
  std::vector<int32_t> positions;
  std::vector<float> cosines;
  std::vector<float> sines;
};

Result Attend(Gpu& gpu, const Case& c, Tensor& qkv, Tensor& d_out) {
  const Angles angles(c);
  const Matrix device_qkv = gpu.Put(qkv, c.more_columns);
  const Matrix device_d_out = gpu.Put(d_out, c.more_columns);
  const Matrix out = gpu.Poisoned(c.dtype, c.rows, c.shape.q_size(), c.more_columns);
  const Matrix d_qkv = gpu.Poisoned(c.dtype, c.rows, c.shape.qkv_size(), c.more_columns);
  const Matrix lse = gpu.Poisoned(DType::kF32, c.shape.heads, c.rows);
  auto* log_sum_exp = static_cast<float*>(lse.data);
  EXPECT_TRUE(gpu.attention().Forward(device_qkv, c.shape, c.cu_seqlens, out, log_sum_exp).ok());
  EXPECT_TRUE(gpu.attention()
                  .Backward(device_d_out, device_qkv, out, log_sum_exp, c.shape, c.cu_seqlens,
                            {.positions = gpu.PutArray(angles.positions),
                             .cosines = gpu.PutArray(angles.cosines),
                             .sines = gpu.PutArray(angles.sines)},
                            d_qkv)
                  .ok());
  Tensor sums = gpu.Take(lse);
  return {gpu.Take(out), gpu.Take(d_qkv), {sums.f32(), sums.f32() + c.rows * c.shape.heads}};
}

// The CPU's result in fp32 for the same values.
Result Expected(const Case& c, const Tensor& qkv, const Tensor& d_out) {
  const auto in_f32 = [&c](const Tensor& from, int64_t columns) {
    Tensor to(DType::kF32, c.rows, columns);
    const Doubles values = from.doubles();
    for (size_t i = 0; i < values.size(); ++i) {
      to.Set(static_cast<int64_t>(i), values[i]);
    }
    return to;
  };
  const Angles angles(c);
  oracle::CpuFixture cpu;
  Tensor qkv_f32 = in_f32(qkv, c.shape.qkv_size());
  Tensor d_out_f32 = in_f32(d_out, c.shape.q_size());
  Result result{Tensor(DType::kF32, c.rows, c.shape.q_size()),
                Tensor(DType::kF32, c.rows, c.shape.qkv_size()),
                std::vector<float>(static_cast<size_t>(c.rows * c.shape.heads))};
  cpu.ops->AttentionForward(qkv_f32.view(), c.shape, c.cu_seqlens, result.out.view(),
                            result.log_sum_exp.data());
  cpu.ops->AttentionBackward(
      d_out_f32.view(), qkv_f32.view(), result.out.view(), result.log_sum_exp.data(), c.shape,
      c.cu_seqlens,
      {.positions = angles.positions.empty() ? nullptr : angles.positions.data(),
       .cosines = angles.cosines.data(),
       .sines = angles.sines.data()},
      result.d_qkv.view());
  EXPECT_TRUE(cpu.ops->Finish().ok());
  return result;
}

struct Kind {
  DType dtype;
  bool with_fused = false;
};

class CudaAttention : public testing::TestWithParam<Kind> {
 protected:
  static constexpr int64_t kHopperShared = 227 << 10;
  static constexpr int64_t kAdaShared = 99 << 10;

  void SetUp() override { UseGpu(1); }
  // Replaces the GPU; the last one's memory is freed.
  void UseGpu(uint64_t seed, int64_t shared_bytes = kHopperShared) {
    gpu_.reset();
    gpu_ = std::make_unique<Gpu>(PrepareGpu(seed, shared_bytes), GetParam().with_fused);
    if (!gpu_->usable()) {
      GTEST_SKIP() << "no GPU that can be used";
    }
  }

  void Check(const Case& c) {
    SCOPED_TRACE("head_dim " + std::to_string(c.shape.head_dim) + ", heads " +
                 std::to_string(c.shape.heads) + ":" + std::to_string(c.shape.kv_heads) +
                 ", rows " + std::to_string(c.rows));
    Random random(static_cast<uint64_t>(c.rows));
    Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
    Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
    const Result result = Attend(*gpu_, c, qkv, d_out);
    const Result expected = Expected(c, qkv, d_out);
    ExpectForward(c, qkv, result, expected);
    // bf16 is rounded before it is turned back, and within fused kernels.
    oracle::ExpectClose(result.d_qkv.doubles(), expected.d_qkv.doubles(),
                        (c.dtype == DType::kBF16 ? 2 : 1) * oracle::Tolerance(c.dtype), "d_qkv");
  }
  static void ExpectForward(const Case& c, const Tensor& qkv, const Result& result,
                            const Result& expected) {
    oracle::ExpectClose(result.out.doubles(),
                        oracle::Attention(qkv.doubles(), c.shape, c.cu_seqlens),
                        oracle::Tolerance(c.dtype), "out");
    // Tensor cores cut off bits below their sums', and powers of two are approximate.
    const double tolerance = c.dtype == DType::kF32 ? 1e-5 : 5e-5;
    for (int64_t head = 0; head < c.shape.heads; ++head) {
      for (int64_t token = 0; token < c.cu_seqlens.back(); ++token) {
        const auto i = static_cast<size_t>(head * c.rows + token);
        const float sum = expected.log_sum_exp[i];
        ASSERT_NEAR(result.log_sum_exp[i], sum, tolerance * std::max(1.0f, std::abs(sum)))
            << head << " " << token;
      }
    }
  }

  std::unique_ptr<Gpu> gpu_;
};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttention,
                         testing::Values(Kind{DType::kF32}, Kind{DType::kBF16},
                                         Kind{DType::kBF16, true}));

TEST_P(CudaAttention, AgreesForSmallHeads) {
  Check({GetParam().dtype, {4, 2, 8}, {0, 5, 6, 30}, 64});
  Check({GetParam().dtype, {2, 2, 32}, {0, 63, 64, 129, 130}, 130});
  Check({GetParam().dtype, {6, 2, 16}, {0, 1, 2, 60, 60, 64}, 64});
  Check({GetParam().dtype, {16, 1, 8}, {0, 70}, 72});
}

TEST_P(CudaAttention, AgreesWhereTilesEnd) {
  Check({GetParam().dtype, {4, 1, 64}, {0, 31, 63, 96}, 100});
  Check({GetParam().dtype, {1, 1, 64}, {0, 127, 255, 384}, 384});
}

// Maxima of rows that rise by much, and by little, from one tile of keys to the next. (Gradients of
// such scores lose too much in bf16 to be compared.)
TEST_P(CudaAttention, AgreesWhereScoresGrow) {
  for (const int64_t head_dim : {64, 128}) {
    const Case c{GetParam().dtype, {2, 1, head_dim}, {0, 40, 200}, 200};
    Random random(15);
    Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
    const Doubles values = qkv.doubles();
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t j = 0; j < c.shape.kv_size(); ++j) {
        const int64_t i = row * c.shape.qkv_size() + c.shape.q_size() + j;
        qkv.Set(i, values[static_cast<size_t>(i)] * (1 + static_cast<double>(row) / 5));
      }
    }
    Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
    ExpectForward(c, qkv, Attend(*gpu_, c, qkv, d_out), Expected(c, qkv, d_out));
  }
}

// Groups that divide the steps in which rows are copied, larger ones, and others.
TEST_P(CudaAttention, AgreesForEveryGroup) {
  for (const int64_t group : {2, 3, 5, 7, 12}) {
    Check({GetParam().dtype, {2 * group, 2, 64}, {0, 5, 20}, 20});
    Check({GetParam().dtype, {group, 1, 96}, {0, 5, 20}, 20});
    Check({GetParam().dtype, {group, 1, 256}, {0, 20}, 20});
  }
}

TEST_P(CudaAttention, AgreesForWideHeads) {
  Check({GetParam().dtype, {8, 1, 128}, {0, 17, 18, 50}, 64});
  Check({GetParam().dtype, {2, 2, 128}, {0, 65, 192}, 200});
  Check({GetParam().dtype, {4, 2, 80}, {0, 33, 100}, 100});
  Check({GetParam().dtype, {2, 1, 256}, {0, 40, 70}, 70});
}

// Shared memory with no room for a second block of large tiles, and too little for any tile.
TEST_P(CudaAttention, AgreesWithLittleSharedMemory) {
  UseGpu(1, kAdaShared);
  Check({GetParam().dtype, {4, 2, 96}, {0, 33, 100}, 100});
  Check({GetParam().dtype, {8, 1, 128}, {0, 17, 18, 50}, 64});
  Check({GetParam().dtype, {2, 2, 128}, {0, 65, 192}, 200});
  Check({GetParam().dtype, {2, 1, 256}, {0, 40, 70}, 70});
  UseGpu(1, 48 << 10);
  Check({GetParam().dtype, {2, 1, 64}, {0, 70}, 72});
}

// Heads that tensor cores do not take, and rows not aligned to 16 bytes.
TEST_P(CudaAttention, AgreesForOddShapes) {
  Check({GetParam().dtype, {3, 1, 5}, {0, 40, 70}, 72});
  Check({GetParam().dtype, {2, 1, 8}, {0, 40, 70}, 72, 3});
  Check({GetParam().dtype, {2, 1, 8}, {0, 40, 70}, 72, 8});
}

// Windows below a warp's rows or keys, of a tile, and between.
TEST_P(CudaAttention, AgreesInWindows) {
  for (const int64_t window : {1, 64, 70}) {
    Check({GetParam().dtype, {4, 2, 64, window}, {0, 5, 6, 150}, 160});
    Check({GetParam().dtype, {3, 1, 128, window}, {0, 140}, 144});
  }
  Check({GetParam().dtype, {1, 1, 64, 200}, {0, 300}, 300});
  Check({GetParam().dtype, {1, 1, 256, 40}, {0, 150}, 150});
  Check({GetParam().dtype, {1, 1, 32, 90}, {0, 300}, 300});
  Check({GetParam().dtype, {3, 1, 5, 33}, {0, 40, 170}, 172});
}

TEST_P(CudaAttention, AWideWindowIsNone) {
  const std::vector<int32_t> cu_seqlens = {0, 60, 200};
  Random random(16);
  Tensor qkv = Tensor::Normal(GetParam().dtype, 200, 4 * 64, random);
  Tensor d_out = Tensor::Normal(GetParam().dtype, 200, 2 * 64, random);
  const Result none = Attend(*gpu_, {GetParam().dtype, {2, 1, 64}, cu_seqlens, 200}, qkv, d_out);
  const Result wide =
      Attend(*gpu_, {GetParam().dtype, {2, 1, 64, 140}, cu_seqlens, 200}, qkv, d_out);
  oracle::ExpectClose(wide.out.doubles(), none.out.doubles(), oracle::Tolerance(GetParam().dtype),
                      "out");
  if (!GetParam().with_fused) {
    EXPECT_TRUE(wide.out.SameBits(none.out));
    EXPECT_TRUE(wide.d_qkv.SameBits(none.d_qkv));
  }
}

TEST_P(CudaAttention, PaddingAloneIsZero) {
  const Case c{GetParam().dtype, {2, 1, 8}, {0}, 5};
  Random random(1);
  Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
  Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
  const Result result = Attend(*gpu_, c, qkv, d_out);
  EXPECT_EQ(result.out.doubles(), Doubles(5 * 16, 0.0));
  EXPECT_EQ(result.d_qkv.doubles(), Doubles(5 * 32, 0.0));
}

// Other sequences and padding, even NaN, change no bit; nor does the order of work.
TEST_P(CudaAttention, NeverReadsAcrossSequences) {
  for (const int64_t head_dim : {8, 64}) {
    const Case c{GetParam().dtype, {4, 2, head_dim}, {0, 20, 45, 75}, 80};
    Random random(12);
    Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
    Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
    const Result clean = Attend(*gpu_, c, qkv, d_out);
    const auto is_poisoned = [](int64_t row) { return (row >= 20 && row < 45) || row >= 75; };
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t j = 0; is_poisoned(row) && j < c.shape.qkv_size(); ++j) {
        qkv.Set(row * c.shape.qkv_size() + j, std::numeric_limits<double>::quiet_NaN());
      }
    }
    UseGpu(2);
    const Result poisoned = Attend(*gpu_, c, qkv, d_out);
    const auto expect_same = [&](const Tensor& a, const Tensor& b, int64_t columns) {
      const Doubles x = a.doubles();
      const Doubles y = b.doubles();
      for (int64_t i = 0; i < c.rows * columns; ++i) {
        const int64_t row = i / columns;
        const auto at = static_cast<size_t>(i);
        if (row >= 75) {
          ASSERT_EQ(y[at], 0.0) << row;
        } else if (is_poisoned(row)) {
          ASSERT_TRUE(std::isnan(y[at])) << row;
        } else {
          ASSERT_EQ(x[at], y[at]) << row;
        }
      }
    };
    expect_same(clean.out, poisoned.out, c.shape.q_size());
    expect_same(clean.d_qkv, poisoned.d_qkv, c.shape.qkv_size());
  }
}

TEST_P(CudaAttention, DecodeIsTheLastRow) {
  for (const int64_t length : {1, 50, 700}) {
    const AttentionShape shape{6, 2, 24};
    const Case c{GetParam().dtype, shape, {0, static_cast<int32_t>(length)}, length};
    Random random(14);
    Tensor qkv = Tensor::Normal(c.dtype, c.rows, shape.qkv_size(), random);
    const Doubles expected = oracle::Attention(qkv.doubles(), shape, c.cu_seqlens);
    const ConstMatrix all = gpu_->Put(qkv);
    const Matrix out = gpu_->Poisoned(c.dtype, 1, shape.q_size());
    ASSERT_TRUE(gpu_->attention()
                    .Decode(all.Rows(length - 1, 1).Columns(0, shape.q_size()),
                            all.Columns(shape.q_size(), shape.kv_size()),
                            all.Columns(shape.q_size() + shape.kv_size(), shape.kv_size()), shape,
                            out)
                    .ok());
    oracle::ExpectClose(gpu_->Take(out).doubles(),
                        Doubles(expected.end() - shape.q_size(), expected.end()),
                        oracle::Tolerance(c.dtype), "decode");
  }
}

}  // namespace
}  // namespace shoal::worker::cuda
