// SwiGLU, GeGLU, biases, embedding and rows.
#include <cmath>

#include "gtest/gtest.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

class Elementwise : public testing::TestWithParam<DType> {
 protected:
  const DType dtype_ = GetParam();
  const double tolerance_ = oracle::Tolerance(GetParam());
  Random random_{9};
  CpuFixture cpu_;
};

// An operator and its backward pass.
struct GatedOp {
  plan::Gate gate;
  void (Ops::*forward)(ConstMatrix, Matrix);
  void (Ops::*backward)(ConstMatrix, ConstMatrix, Matrix, Matrix);
};
constexpr GatedOp kGated[] = {{plan::Gate::kSilu, &Ops::SwiGluForward, &Ops::SwiGluBackward},
                              {plan::Gate::kGeluTanh, &Ops::GeGluForward, &Ops::GeGluBackward}};

TEST_P(Elementwise, GatedProductsAgreeWithTheOracle) {
  constexpr int64_t kRows = 33, kWidth = 37;
  for (const GatedOp& op : kGated) {
    Tensor gate_up = Tensor::Normal(dtype_, kRows, 2 * kWidth, random_, 3.0);
    Tensor d_out = Tensor::Normal(dtype_, kRows, kWidth, random_);
    Tensor out(dtype_, kRows, kWidth), d_gate_up(dtype_, kRows, 2 * kWidth);
    (cpu_.ops.get()->*op.forward)(gate_up.view(), out.view());
    oracle::ExpectClose(out.doubles(), oracle::Gated(op.gate, gate_up.doubles(), kWidth),
                        tolerance_, "out");
    Tensor again(dtype_, kRows, kWidth);
    (cpu_.ops.get()->*op.backward)(d_out.view(), gate_up.view(), d_gate_up.view(), again.view());
    EXPECT_TRUE(again.SameBits(out));
    oracle::ExpectGradient([&](const Doubles& at) { return oracle::Gated(op.gate, at, kWidth); },
                           gate_up.doubles(), d_out.doubles(), d_gate_up.doubles(), tolerance_,
                           "d_gate_up");
  }
}

TEST_P(Elementwise, GatedProductsStayFiniteFarOut) {
  Tensor gate_up(dtype_, 1, 4), out(dtype_, 1, 2), d_out(dtype_, 1, 2, 1.0),
      d_gate_up(dtype_, 1, 4);
  for (const GatedOp& op : kGated) {
    for (const double gate : {-1e4, 1e4}) {
      gate_up.Set(0, gate);
      gate_up.Set(2, 1.0);
      (cpu_.ops.get()->*op.forward)(gate_up.view(), out.view());
      (cpu_.ops.get()->*op.backward)(d_out.view(), gate_up.view(), d_gate_up.view(), {});
      EXPECT_NEAR(out.doubles()[0], gate > 0 ? 1e4 : 0.0, 50);
      EXPECT_NEAR(d_gate_up.doubles()[0], gate > 0 ? 1.0 : 0.0, 1e-3);
    }
  }
}

TEST_P(Elementwise, ScalesInPlace) {
  constexpr int64_t kColumns = 130;
  const auto check = [&](int64_t first, int64_t count) {
    Tensor x = Tensor::Normal(dtype_, 7, kColumns, random_);
    Doubles expected = x.doubles();
    for (size_t i = 0; i < expected.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % kColumns;
      expected[i] *= column >= first && column < first + count ? -1.75 : 1;
    }
    const Doubles before = x.doubles();
    cpu_.ops->Scale(-1.75F, x.view().Columns(first, count));
    oracle::ExpectClose(x.doubles(), expected, tolerance_, "-1.75 x");
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == before[i]) {
        ASSERT_EQ(x.doubles()[i], before[i]) << "a neighbour, at " << i;
      }
    }
  };
  check(0, kColumns);
  check(3, 29);
}

TEST_P(Elementwise, BiasIsAddedToRowsAndItsGradientIsTheSumOfColumns) {
  constexpr int64_t kRows = 70, kColumns = 130;
  Tensor y = Tensor::Normal(dtype_, kRows, kColumns, random_);
  Tensor bias = Tensor::Normal(dtype_, 1, kColumns, random_);
  const Doubles before = y.doubles();
  Tensor d_bias(DType::kF32, 1, kColumns, 2.0);
  cpu_.ops->AddColumnSums(y.view(), d_bias.f32());
  cpu_.ops->AddBias(bias.vector(), y.view());
  Doubles expected = before;
  Doubles sums(kColumns, 2.0);
  for (size_t i = 0; i < expected.size(); ++i) {
    sums[i % kColumns] += before[i];
    expected[i] += bias.doubles()[i % kColumns];
  }
  oracle::ExpectClose(y.doubles(), expected, tolerance_, "y + bias");
  oracle::ExpectClose(d_bias.doubles(), sums, 1e-5, "d_bias");
}

TEST_P(Elementwise, EmbeddingLooksUpAndAddsBack) {
  constexpr int64_t kVocabulary = 11, kHidden = 70, kTokens = 40;
  Tensor table = Tensor::Normal(dtype_, kVocabulary, kHidden, random_);
  Tensor out(dtype_, 64, kHidden, 7.0);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random_.Below(kVocabulary));
  }
  cpu_.ops->EmbeddingForward(tokens.data(), kTokens, table.view(), 1.0f, out.view());
  Tensor d_table(DType::kF32, kVocabulary, kHidden, 1.0);
  cpu_.ops->EmbeddingBackward(tokens.data(), kTokens, out.view(), 1.0f, d_table.view());
  const Doubles rows = out.doubles();
  Doubles expected(kVocabulary * kHidden, 1.0);
  for (size_t t = 0; t < 64; ++t) {
    for (size_t j = 0; j < kHidden; ++j) {
      const double value =
          t < kTokens ? table.doubles()[static_cast<size_t>(tokens[t]) * kHidden + j] : 0.0;
      ASSERT_EQ(rows[t * kHidden + j], value);
      if (t < kTokens) {
        expected[static_cast<size_t>(tokens[t]) * kHidden + j] += value;
      }
    }
  }
  oracle::ExpectClose(d_table.doubles(), expected, 1e-5, "d_table");
}

TEST_P(Elementwise, EmbeddingsAreScaledBothWays) {
  constexpr float kScale = 6.9375f;  // in bf16 too
  const int32_t token = 1;
  Tensor table = Tensor::Normal(dtype_, 2, 40, random_);
  Tensor out(dtype_, 1, 40);
  cpu_.ops->EmbeddingForward(&token, 1, table.view(), kScale, out.view());
  Tensor d_out = Tensor::Normal(dtype_, 1, 40, random_);
  Tensor d_table(DType::kF32, 2, 40, 1.0);
  cpu_.ops->EmbeddingBackward(&token, 1, d_out.view(), kScale, d_table.view());
  Doubles rows = table.doubles();
  rows.erase(rows.begin(), rows.begin() + 40);
  Doubles expected(40, 1.0);
  for (size_t j = 0; j < 40; ++j) {
    rows[j] *= kScale;
    expected.push_back(1.0 + kScale * d_out.doubles()[j]);
  }
  oracle::ExpectClose(out.doubles(), rows, dtype_ == DType::kF32 ? 1e-7 : 4e-3, "out");
  oracle::ExpectClose(d_table.doubles(), expected, 1e-6, "d_table");
}

TEST_P(Elementwise, RowsAreGatheredAndScattered) {
  Tensor in = Tensor::Normal(dtype_, 9, 5, random_);
  Tensor out(dtype_, 4, 5, 3.0), back(dtype_, 9, 5, -1.0);
  const int32_t rows[] = {1, 4, 8};
  cpu_.ops->GatherRows(in.view(), rows, 3, out.view());
  cpu_.ops->ScatterRows(out.view(), rows, 3, back.view());
  for (size_t row = 0; row < 9; ++row) {
    const bool chosen = row == 1 || row == 4 || row == 8;
    for (size_t j = 0; j < 5; ++j) {
      EXPECT_EQ(back.doubles()[row * 5 + j], chosen ? in.doubles()[row * 5 + j] : -1.0);
      EXPECT_EQ(out.doubles()[15 + j], 0.0);
    }
  }
}

TEST_P(Elementwise, ConvertsBetweenTypesAndStrides) {
  Tensor in = Tensor::Normal(dtype_, 20, 30, random_);
  for (const DType to : {DType::kF32, DType::kBF16}) {
    Tensor out(to, 20, 10);
    cpu_.ops->Convert(in.view().Columns(5, 10), out.view());
    for (size_t i = 0; i < 200; ++i) {
      const auto value = static_cast<float>(in.doubles()[i / 10 * 30 + 5 + i % 10]);
      EXPECT_EQ(out.doubles()[i], to == DType::kF32 ? value : static_cast<float>(BFloat16(value)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Elementwise, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace shoal::worker
