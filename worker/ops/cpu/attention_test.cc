#include <cmath>
#include <limits>
#include <thread>

#include "gtest/gtest.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

struct AttentionCase {
  DType dtype;
  AttentionShape shape;
  std::vector<int32_t> cu_seqlens;
  int64_t rows;  // padding included
};

struct Result {
  Tensor out;
  Tensor d_qkv;
};

Result Attend(const AttentionCase& c, Tensor& qkv, Tensor& d_out, int threads = 2) {
  CpuFixture cpu(threads);
  Result result{Tensor(c.dtype, c.rows, c.shape.q_size(), 5.0),
                Tensor(c.dtype, c.rows, c.shape.qkv_size(), 5.0)};
  std::vector<float> lse(static_cast<size_t>(c.rows * c.shape.heads));
  cpu.ops->AttentionForward(qkv.view(), c.shape, c.cu_seqlens, result.out.view(), lse.data());
  cpu.ops->AttentionBackward(d_out.view(), qkv.view(), result.out.view(), lse.data(), c.shape,
                             c.cu_seqlens, {}, result.d_qkv.view());
  EXPECT_TRUE(cpu.ops->Finish().ok());
  return result;
}

void Check(const AttentionCase& c) {
  Random random(10);
  Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
  Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
  const Result result = Attend(c, qkv, d_out);
  const double tolerance = oracle::Tolerance(c.dtype);
  oracle::ExpectClose(result.out.doubles(), oracle::Attention(qkv.doubles(), c.shape, c.cu_seqlens),
                      tolerance, "out");
  oracle::ExpectGradient(
      [&](const Doubles& at) { return oracle::Attention(at, c.shape, c.cu_seqlens); },
      qkv.doubles(), d_out.doubles(), result.d_qkv.doubles(), tolerance, "d_qkv");
}

class Attention : public testing::TestWithParam<DType> {};

TEST_P(Attention, AgreesWithTheOracle) {
  Check({GetParam(), {4, 2, 8}, {0, 5, 6, 30}, 64});
  Check({GetParam(), {2, 2, 16}, {0, 70}, 128});
  Check({GetParam(), {6, 1, 4}, {0, 1, 2, 60, 64}, 64});
}

TEST_P(Attention, SeesItsWindow) {
  for (const int64_t window : {1, 5, 29, 30, 31}) {
    Check({GetParam(), {4, 2, 8, window}, {0, 5, 6, 36}, 64});
  }
  // Windows that begin within and between blocks of queries and keys.
  for (const int64_t window : {64, 100, 300}) {
    Check({GetParam(), {2, 1, 4, window}, {0, 3, 700}, 704});
  }
}

TEST_P(Attention, ScalesAndCapsScores) {
  Check(
      {GetParam(), {.heads = 4, .kv_heads = 2, .head_dim = 8, .query_scalar = 2}, {0, 5, 36}, 64});
  const AttentionShape capped{
      .heads = 4, .kv_heads = 2, .head_dim = 8, .query_scalar = 2, .softcap = 1.5};
  Check({GetParam(), capped, {0, 5, 6, 36}, 64});
  AttentionShape windowed = capped;
  windowed.window = 100;
  Check({GetParam(), windowed, {0, 3, 700}, 704});
}

// As large a window as the sequence changes no bit.
TEST_P(Attention, AWideWindowIsNone) {
  const std::vector<int32_t> cu_seqlens = {0, 100, 400};
  Random random(16);
  Tensor qkv = Tensor::Normal(GetParam(), 400, 32, random);
  Tensor d_out = Tensor::Normal(GetParam(), 400, 16, random);
  const Result none = Attend({GetParam(), {2, 1, 8}, cu_seqlens, 400}, qkv, d_out);
  const Result wide = Attend({GetParam(), {2, 1, 8, 300}, cu_seqlens, 400}, qkv, d_out);
  EXPECT_TRUE(wide.out.SameBits(none.out));
  EXPECT_TRUE(wide.d_qkv.SameBits(none.d_qkv));
}

// A key changes the outputs of the tokens from its own on, as many as the window has.
TEST_P(Attention, AKeyIsSeenForTheWindow) {
  constexpr int64_t kWindow = 70;
  constexpr int64_t kPlanted = 50;
  const AttentionCase c{GetParam(), {1, 1, 8, kWindow}, {0, 200}, 200};
  Random random(17);
  Tensor qkv = Tensor::Normal(c.dtype, c.rows, 24, random, 0.3);
  Tensor d_out = Tensor::Normal(c.dtype, c.rows, 8, random);
  const Doubles before = Attend(c, qkv, d_out).out.doubles();
  for (int64_t j = 16; j < 24; ++j) {
    qkv.Set(kPlanted * 24 + j, 1000.0);
  }
  const Doubles after = Attend(c, qkv, d_out).out.doubles();
  for (int64_t i = 0; i < c.rows; ++i) {
    EXPECT_EQ(after[static_cast<size_t>(i * 8)] != before[static_cast<size_t>(i * 8)],
              i >= kPlanted && i < kPlanted + kWindow)
        << i;
  }
}

// More than one block of keys (256), so that maxima and sums are carried from block to block.
TEST_P(Attention, CarriesOverBlocksOfKeys) { Check({GetParam(), {2, 1, 4}, {0, 3, 700}, 704}); }

TEST_P(Attention, PackedIsTheSameAsEachSequenceAlone) {
  const AttentionCase packed{GetParam(), {4, 2, 16}, {0, 37, 42, 132}, 192};
  Random random(11);
  Tensor qkv = Tensor::Normal(packed.dtype, packed.rows, packed.shape.qkv_size(), random);
  Tensor d_out = Tensor::Normal(packed.dtype, packed.rows, packed.shape.q_size(), random);
  const Result together = Attend(packed, qkv, d_out);
  for (size_t s = 0; s + 1 < packed.cu_seqlens.size(); ++s) {
    const int64_t begin = packed.cu_seqlens[s];
    const int64_t length = packed.cu_seqlens[s + 1] - begin;
    const AttentionCase alone{
        packed.dtype, packed.shape, {0, static_cast<int32_t>(length)}, length};
    Tensor own_qkv(packed.dtype, length, packed.shape.qkv_size());
    Tensor own_d_out(packed.dtype, length, packed.shape.q_size());
    const auto copy = [&](const Tensor& from, Tensor& to, int64_t width) {
      const Doubles values = from.doubles();
      for (int64_t i = 0; i < length * width; ++i) {
        to.Set(i, values[static_cast<size_t>(begin * width + i)]);
      }
    };
    copy(qkv, own_qkv, packed.shape.qkv_size());
    copy(d_out, own_d_out, packed.shape.q_size());
    const Result own = Attend(alone, own_qkv, own_d_out);
    Tensor part(packed.dtype, length, packed.shape.qkv_size());
    copy(together.d_qkv, part, packed.shape.qkv_size());
    EXPECT_TRUE(part.SameBits(own.d_qkv)) << s;
    Tensor out_part(packed.dtype, length, packed.shape.q_size());
    copy(together.out, out_part, packed.shape.q_size());
    EXPECT_TRUE(out_part.SameBits(own.out)) << s;
  }
}

// NaN in one sequence or in padding stays there, forward and backward.
TEST_P(Attention, NeverReadsAcrossSequences) {
  const AttentionCase c{GetParam(), {4, 2, 8}, {0, 20, 45, 60}, 64};
  Random random(12);
  Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
  Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t row = 0; row < c.rows; ++row) {
    if ((row >= 20 && row < 45) || row >= 60) {
      for (int64_t j = 0; j < c.shape.qkv_size(); ++j) {
        qkv.Set(row * c.shape.qkv_size() + j, nan);
      }
    }
  }
  const Result result = Attend(c, qkv, d_out);
  const Doubles out = result.out.doubles();
  const Doubles d_qkv = result.d_qkv.doubles();
  for (int64_t row = 0; row < c.rows; ++row) {
    const bool poisoned = row >= 20 && row < 45;
    EXPECT_EQ(std::isnan(out[static_cast<size_t>(row * c.shape.q_size())]), poisoned) << row;
    EXPECT_EQ(std::isnan(d_qkv[static_cast<size_t>(row * c.shape.qkv_size())]), poisoned) << row;
  }
  EXPECT_EQ(out.back(), 0.0);
  EXPECT_EQ(d_qkv.back(), 0.0);
}

// Runs on a thread that has not attended before, so it has no memory for keys yet.
TEST_P(Attention, TakesEmptySequences) {
  const AttentionCase c{GetParam(), {2, 1, 8}, {0, 0, 0, 3, 3}, 4};
  std::thread([&] {
    Random random(15);
    Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
    Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
    const Result with = Attend(c, qkv, d_out, 1);
    const Result without = Attend({c.dtype, c.shape, {0, 3}, c.rows}, qkv, d_out, 1);
    EXPECT_TRUE(with.out.SameBits(without.out));
    EXPECT_TRUE(with.d_qkv.SameBits(without.d_qkv));
  }).join();
}

TEST_P(Attention, DoesNotDependOnThreads) {
  const AttentionCase c{GetParam(), {4, 2, 8}, {0, 100, 130, 250}, 256};
  Random random(13);
  Tensor qkv = Tensor::Normal(c.dtype, c.rows, c.shape.qkv_size(), random);
  Tensor d_out = Tensor::Normal(c.dtype, c.rows, c.shape.q_size(), random);
  const Result one = Attend(c, qkv, d_out, 1);
  const Result three = Attend(c, qkv, d_out, 3);
  EXPECT_TRUE(one.out.SameBits(three.out));
  EXPECT_TRUE(one.d_qkv.SameBits(three.d_qkv));
}

TEST_P(Attention, DecodeIsTheLastRow) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 2, 8},
        AttentionShape{
            .heads = 4, .kv_heads = 2, .head_dim = 8, .query_scalar = 2, .softcap = 1.5}}) {
    const AttentionCase c{GetParam(), shape, {0, 50}, 50};
    Random random(14);
    Tensor qkv = Tensor::Normal(c.dtype, c.rows, shape.qkv_size(), random);
    const Doubles expected = oracle::Attention(qkv.doubles(), shape, c.cu_seqlens);
    CpuFixture cpu;
    Tensor out(c.dtype, 1, shape.q_size());
    const ConstMatrix all = qkv.view();
    cpu.ops->AttentionDecode(
        all.Rows(49, 1).Columns(0, shape.q_size()), all.Columns(shape.q_size(), shape.kv_size()),
        all.Columns(shape.q_size() + shape.kv_size(), shape.kv_size()), shape, out.view());
    oracle::ExpectClose(out.doubles(), Doubles(expected.end() - shape.q_size(), expected.end()),
                        oracle::Tolerance(c.dtype), "decode");
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Attention, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace shoal::worker
