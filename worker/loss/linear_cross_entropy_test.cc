#include "worker/loss/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "core/plan/memory/loss_chunk.h"
#include "gtest/gtest.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

constexpr int64_t kRows = 320;
constexpr int64_t kHidden = 24;
constexpr int64_t kVocabulary = 60;
constexpr float kScale = 0.125f;

// Computes the logits of every target at once, in double.
double NaiveLoss(const Doubles& x, const Doubles& weight, std::span<const int32_t> rows,
                 std::span<const int32_t> labels, std::span<const float> weights) {
  Doubles chosen;
  for (const int32_t row : rows) {
    chosen.insert(chosen.end(), x.begin() + row * kHidden, x.begin() + (row + 1) * kHidden);
  }
  const Doubles logits = oracle::Matmul(chosen, weight, static_cast<int64_t>(rows.size()),
                                        kVocabulary, kHidden, false, true);
  return oracle::CrossEntropy(logits, labels, weights, kVocabulary);
}

void Check(DType dtype, const std::vector<int32_t>& rows) {
  Random random(1);
  CpuFixture cpu;
  Tensor x = Tensor::Normal(dtype, kRows, kHidden, random);
  Tensor weight = Tensor::Normal(dtype, kVocabulary, kHidden, random, 0.5);
  std::vector<int32_t> labels;
  std::vector<float> weights;  // from -1 to 2
  for (size_t i = 0; i < rows.size(); ++i) {
    labels.push_back(static_cast<int32_t>(random.Below(kVocabulary)));
    weights.push_back(static_cast<float>(random.Below(4)) - 1);
  }
  constexpr int64_t kChunk = 128;  // several chunks
  Tensor chunk_x(dtype, kChunk, kHidden), chunk_d_x(dtype, kChunk, kHidden),
      logits(DType::kF32, kChunk, kVocabulary), d_logits(dtype, kChunk, kVocabulary),
      d_x(dtype, kRows, kHidden, 3.0), d_weight(DType::kF32, kVocabulary, kHidden),
      written(DType::kF32, kVocabulary, kHidden, 3.0);
  const CrossEntropyBuffers buffers{
      .x = chunk_x.view(),
      .d_x = chunk_d_x.view(),
      .logits = logits.view(),
      .d_logits = dtype == DType::kF32 ? logits.view() : d_logits.view()};
  const Targets targets{
      .host_rows = rows, .rows = rows.data(), .labels = labels.data(), .weights = weights.data()};
  std::vector<float> log_probabilities(rows.size());
  double loss = 0;
  double loss_alone = 0;
  LinearCrossEntropy(*cpu.ops, x.view(), weight.view(), targets, kScale, 0.0f, buffers, d_x.view(),
                     {d_weight.f32()}, {&loss});
  LinearCrossEntropy(*cpu.ops, x.view(), weight.view(), targets, kScale, 0.0f, buffers, Matrix(),
                     {}, {&loss_alone, log_probabilities.data()});
  double loss_again = 0;
  LinearCrossEntropy(*cpu.ops, x.view(), weight.view(), targets, kScale, 0.0f, buffers, d_x.view(),
                     {.sums = written.f32(), .empty = true}, {&loss_again});
  ASSERT_TRUE(cpu.ops->Finish().ok());

  EXPECT_NEAR(loss, NaiveLoss(x.doubles(), weight.doubles(), rows, labels, weights),
              1e-5 * (1 + std::abs(loss)));
  EXPECT_EQ(loss, loss_alone);
  double from_log_probabilities = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    from_log_probabilities -= static_cast<double>(weights[i] * log_probabilities[i]);
    if (weights[i] == 0) {
      const Doubles d_row = d_x.doubles();
      const auto begin = d_row.begin() + rows[i] * kHidden;
      EXPECT_TRUE(std::all_of(begin, begin + kHidden, [](double d) { return d == 0; })) << i;
    }
  }
  EXPECT_NEAR(loss, from_log_probabilities, 1e-5 * (1 + static_cast<double>(rows.size())));
  EXPECT_EQ(written.doubles(), d_weight.doubles());
  const double tolerance = oracle::Tolerance(dtype);
  oracle::ExpectGradient(
      [&](const Doubles& at) {
        return Doubles{NaiveLoss(at, weight.doubles(), rows, labels, weights)};
      },
      x.doubles(), {kScale}, d_x.doubles(), tolerance, "d_x");
  oracle::ExpectGradient(
      [&](const Doubles& at) { return Doubles{NaiveLoss(x.doubles(), at, rows, labels, weights)}; },
      weight.doubles(), {kScale}, d_weight.doubles(), tolerance, "d_weight");
}

TEST(LinearCrossEntropy, ChunksGiveWhatAllLogitsAtOnceGive) {
  std::vector<int32_t> all, some, middle;
  for (int32_t row = 0; row < kRows; ++row) {
    all.push_back(row);
    if (row % 3 != 1) {
      some.push_back(row);
    }
    if (row >= 10 && row < 10 + 128 + 64) {  // full chunks without gaps, away from the start
      middle.push_back(row);
    }
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Check(dtype, all);
    Check(dtype, some);
    Check(dtype, middle);
    Check(dtype, {5});
    Check(dtype, {});
  }
}

TEST(LossChunk, BoundsTheLogits) {
  EXPECT_EQ(plan::kCpuLossChunk.Rows(4096, 100000), 512);
  EXPECT_EQ(plan::kCpuLossChunk.Rows(4096, 70), 128);
  EXPECT_EQ(plan::kCpuLossChunk.Rows(4096, 0), 64);
  EXPECT_EQ(plan::kCpuLossChunk.Rows(152064, 100000), 64);
  EXPECT_EQ(plan::kGpuLossChunk.Rows(4096, 100000), 4096);
  EXPECT_EQ(plan::kGpuLossChunk.Rows(50304, 100000), 4096);
  EXPECT_EQ(plan::kGpuLossChunk.Rows(4096, 70), 128);
  EXPECT_EQ(plan::kGpuLossChunk.Rows(152064, 100000), 2048);
  EXPECT_EQ(plan::kGpuLossChunk.Rows(262144, 100000), 1152);
}

}  // namespace
}  // namespace shoal::worker
