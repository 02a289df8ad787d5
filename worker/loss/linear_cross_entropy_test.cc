#include "worker/loss/linear_cross_entropy.h"

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
                 std::span<const int32_t> labels) {
  Doubles chosen;
  for (const int32_t row : rows) {
    chosen.insert(chosen.end(), x.begin() + row * kHidden, x.begin() + (row + 1) * kHidden);
  }
  const Doubles logits = oracle::Matmul(chosen, weight, static_cast<int64_t>(rows.size()),
                                        kVocabulary, kHidden, false, true);
  return oracle::CrossEntropy(logits, labels, kVocabulary);
}

void Check(DType dtype, const std::vector<int32_t>& rows) {
  Random random(1);
  CpuFixture cpu;
  Tensor x = Tensor::Normal(dtype, kRows, kHidden, random);
  Tensor weight = Tensor::Normal(dtype, kVocabulary, kHidden, random, 0.5);
  std::vector<int32_t> labels;
  for (size_t i = 0; i < rows.size(); ++i) {
    labels.push_back(static_cast<int32_t>(random.Below(kVocabulary)));
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
  const Targets targets{.host_rows = rows, .rows = rows.data(), .labels = labels.data()};
  double loss = 0;
  double loss_alone = 0;
  LinearCrossEntropy(*cpu.ops, x.view(), weight.view(), targets, kScale, 0.0f, buffers, d_x.view(),
                     {d_weight.f32()}, &loss);
  LinearCrossEntropy(*cpu.ops, x.view(), weight.view(), targets, kScale, 0.0f, buffers, Matrix(),
                     {}, &loss_alone);
  double loss_again = 0;
  LinearCrossEntropy(*cpu.ops, x.view(), weight.view(), targets, kScale, 0.0f, buffers, d_x.view(),
                     {.sums = written.f32(), .empty = true}, &loss_again);
  ASSERT_TRUE(cpu.ops->Finish().ok());

  EXPECT_NEAR(loss, NaiveLoss(x.doubles(), weight.doubles(), rows, labels),
              1e-5 * (1 + std::abs(loss)));
  EXPECT_EQ(loss, loss_alone);
  EXPECT_EQ(written.doubles(), d_weight.doubles());
  const double tolerance = oracle::Tolerance(dtype);
  oracle::ExpectGradient(
      [&](const Doubles& at) { return Doubles{NaiveLoss(at, weight.doubles(), rows, labels)}; },
      x.doubles(), {kScale}, d_x.doubles(), tolerance, "d_x");
  oracle::ExpectGradient(
      [&](const Doubles& at) { return Doubles{NaiveLoss(x.doubles(), at, rows, labels)}; },
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
