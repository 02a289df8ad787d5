#include "worker/ops/dropout.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/ops/philox.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

std::vector<DropoutRow> RowsOf(uint32_t sample, uint32_t count) {
  std::vector<DropoutRow> rows;
  for (uint32_t position = 0; position < count; ++position) {
    rows.push_back({sample, position});
  }
  return rows;
}

class DropoutOp : public testing::TestWithParam<DType> {
 protected:
  const DType dtype_ = GetParam();
  Random random_{9};
};

// Word by word, as the header says it.
TEST_P(DropoutOp, KeepsWhatItsCounterSays) {
  constexpr int64_t kRows = 5, kColumns = 1030;  // the end of a row is no whole counter
  const std::vector<DropoutRow> rows = {{7, 0}, {7, 1}, {7, 2}, {900, 0}, {900, 4000}};
  const DropoutMask mask = {
      .probability = 0.25, .seed = 0x123456789ABCDEF0, .step = 3, .matrix = 17, .rows = rows};
  const Tensor x = Tensor::Normal(dtype_, kRows, kColumns, random_);
  Tensor residual = Tensor::Normal(dtype_, kRows, kColumns, random_);
  const Doubles values = x.doubles();
  Doubles expected(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto column = static_cast<uint32_t>(i % kColumns);
    const DropoutRow& row = rows[i / kColumns];
    const PhiloxWords words =
        Philox4x32({3, row.sample, row.position, (17U << 16) + column / 4}, mask.seed);
    expected[i] = words[column % 4] < 1U << 30 ? 0 : values[i] / 0.75;
  }
  for (const int threads : {1, 3}) {
    const CpuFixture cpu(threads);
    Tensor given = x;
    Tensor y(dtype_, kRows, kColumns, 5.0);
    cpu.ops->Dropout(given.view(), mask, {}, y.view());
    oracle::ExpectClose(y.doubles(), expected, oracle::Tolerance(dtype_), "y");
    cpu.ops->Dropout(given.view(), mask, {}, given.view());
    EXPECT_TRUE(given.SameBits(y)) << "in place";

    Tensor sums(DType::kF32, kRows, kColumns);
    cpu.ops->Convert(Tensor(x).view(), sums.view());
    cpu.ops->Dropout(sums.view(), mask, residual.view(), sums.view());
    Doubles with_residual = expected;
    for (size_t i = 0; i < expected.size(); ++i) {
      with_residual[i] += residual.doubles()[i];
    }
    oracle::ExpectClose(sums.doubles(), with_residual, oracle::Tolerance(DType::kF32), "sum");
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DropoutOp, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

// What is kept of ones, in 64 rows of 4096 columns.
Doubles KeptOf(DropoutMask mask) {
  const CpuFixture cpu;
  const std::vector<DropoutRow> rows = RowsOf(mask.matrix, 64);
  mask.rows = rows;
  Tensor ones(DType::kF32, 64, 4096, 1.0);
  cpu.ops->Dropout(ones.view(), mask, {}, ones.view());
  return ones.doubles();
}

int64_t Different(const Doubles& a, const Doubles& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += (a[i] == 0) != (b[i] == 0) ? 1 : 0;
  }
  return count;
}

// Of 262,144 elements, within four deviations of the binomial; the counts are fixed by the seed.
TEST(Dropout, DropsThatPart) {
  for (const double probability : {0.01, 0.1, 0.5, 0.9}) {
    const Doubles kept = KeptOf({.probability = probability, .seed = 11, .step = 5});
    const auto n = static_cast<double>(kept.size());
    const auto dropped = static_cast<double>(std::count(kept.begin(), kept.end(), 0.0));
    EXPECT_NEAR(dropped, probability * n, 4 * std::sqrt(n * probability * (1 - probability)))
        << probability;
    EXPECT_NEAR(*std::ranges::max_element(kept), 1 / (1 - probability), 1e-6);
  }
}

// Two masks that share nothing differ in half of what they drop of it.
TEST(Dropout, AnotherStepMatrixOrSeedIsAnotherMask) {
  const DropoutMask mask = {.probability = 0.5, .seed = 11, .step = 5, .matrix = 2};
  const Doubles kept = KeptOf(mask);
  DropoutMask step = mask, matrix = mask, seed = mask, high = mask;
  step.step = 6;
  matrix.matrix = 3;
  seed.seed = 12;
  high.seed = 11 + (uint64_t{1} << 32);
  for (const DropoutMask& other : {step, matrix, seed, high}) {
    EXPECT_NEAR(static_cast<double>(Different(kept, KeptOf(other))), 131072, 4 * 256);
  }
  EXPECT_EQ(Different(kept, KeptOf(mask)), 0);
}

}  // namespace
}  // namespace shoal::worker
