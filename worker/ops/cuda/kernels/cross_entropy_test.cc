// Cross entropy in all ways of assigning rows to blocks, against double precision. (The checks of
// all operators cover the rest of the contract in ops.h.)
#include "worker/ops/cuda/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/random.h"
#include "core/gpu/testing/gpu.h"
#include "core/gpu/testing/on_device.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kShared = 227 << 10;
constexpr float kScale = 0.25f;
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t rows;
  int64_t count;
  int64_t columns;
  int64_t stride;
  int64_t gradient_stride;
  int64_t shared_bytes = kShared;
};

struct Result {
  double loss = 0;
  std::vector<float> gradients;  // including gaps between rows
  std::vector<float> log_probabilities;
};

class CrossEntropy : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareGpu(7)) {
      GTEST_SKIP() << "no GPU";
    }
  }

  void Make(const Case& c) {
    logits_.assign(static_cast<size_t>(c.rows * c.stride), kPoison);
    labels_.resize(static_cast<size_t>(c.count));
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t column = 0; column < c.columns; ++column) {
        logits_[static_cast<size_t>(row * c.stride + column)] =
            static_cast<float>(3 * random_.Normal());
      }
    }
    for (int32_t& label : labels_) {
      label = static_cast<int32_t>(random_.Below(static_cast<uint64_t>(c.columns)));
    }
    labels_.front() = static_cast<int32_t>(c.columns - 1);
    weights_.resize(labels_.size());
    for (size_t row = 0; row < weights_.size(); ++row) {
      weights_[row] = static_cast<float>(row % 4) - 1;  // 0 among them
    }
  }

  enum class Gradients { kNone, kApart, kInPlace };
  Result Run(const Case& c, Gradients wanted) {
    const OnDevice<float> logits(logits_);
    const OnDevice<int32_t> labels(labels_);
    const OnDevice<float> weights(weights_);
    const OnDevice<float> log_probabilities(std::vector<float>(weights_.size(), kPoison));
    const OnDevice<float> gradients(
        std::vector<float>(static_cast<size_t>(c.rows * c.gradient_stride), kPoison));
    const OnDevice<double> loss(std::vector<double>{1.5});
    const OnDevice<std::byte> scratch(
        std::vector<std::byte>(static_cast<size_t>(CrossEntropyScratch(c.count, c.columns))));
    CrossEntropyArgs args{.logits = {logits.data(), Element::kF32, c.rows, c.columns, c.stride},
                          .rows = {labels.data(), weights.data(), c.count},
                          .scale = kScale,
                          .loss = {loss.data(), log_probabilities.data()},
                          .shared_bytes = c.shared_bytes};
    if (wanted == Gradients::kApart) {
      args.d_logits = {gradients.data(), Element::kF32, c.rows, c.columns, c.gradient_stride};
    } else if (wanted == Gradients::kInPlace) {
      args.d_logits = {logits.data(), Element::kF32, c.rows, c.columns, c.stride};
    }
    EXPECT_EQ(SoftmaxCrossEntropy(nullptr, args, scratch.data()), cudaSuccess);
    return {loss.Read().front(), wanted == Gradients::kInPlace ? logits.Read() : gradients.Read(),
            log_probabilities.Read()};
  }

  void ExpectGradients(const Case& c, const std::vector<float>& actual, int64_t stride) {
    for (int64_t row = 0; row < c.rows; ++row) {
      const float* logits = logits_.data() + row * c.stride;
      const float* got = actual.data() + row * stride;
      double sum = 0;
      for (int64_t column = 0; column < c.columns; ++column) {
        sum += std::exp(static_cast<double>(logits[column]));
      }
      for (int64_t column = 0; column < stride; ++column) {
        if (column >= c.columns) {
          ASSERT_TRUE(std::isnan(got[column])) << row << " " << column;
        } else if (row >= c.count || weights_[static_cast<size_t>(row)] == 0) {
          ASSERT_EQ(got[column], 0.0f) << row << " " << column;
        } else {
          const double hot = column == labels_[static_cast<size_t>(row)] ? 1 : 0;
          const double scale = static_cast<double>(kScale * weights_[static_cast<size_t>(row)]);
          const double expected =
              scale * (std::exp(static_cast<double>(logits[column])) / sum - hot);
          ASSERT_NEAR(got[column], expected, 1e-6 + 1e-5 * std::abs(expected))
              << row << " " << column;
        }
      }
    }
  }
  std::vector<double> LogProbabilities(const Case& c) const {
    std::vector<double> all;
    for (int64_t row = 0; row < c.count; ++row) {
      const float* logits = logits_.data() + row * c.stride;
      double sum = 0;
      for (int64_t column = 0; column < c.columns; ++column) {
        sum += std::exp(static_cast<double>(logits[column]));
      }
      all.push_back(static_cast<double>(logits[labels_[static_cast<size_t>(row)]]) - std::log(sum));
    }
    return all;
  }

  void Check(const Case& c) {
    SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.columns));
    Make(c);
    const Result alone = Run(c, Gradients::kNone);
    const std::vector<double> expected = LogProbabilities(c);
    double loss = 1.5;
    for (size_t row = 0; row < expected.size(); ++row) {
      loss -= static_cast<double>(weights_[row]) * expected[row];
      EXPECT_NEAR(static_cast<double>(alone.log_probabilities[row]), expected[row], 1e-5) << row;
    }
    EXPECT_NEAR(alone.loss, loss, 1e-5 * static_cast<double>(c.count));
    const Result apart = Run(c, Gradients::kApart);
    EXPECT_EQ(apart.loss, alone.loss);
    EXPECT_EQ(apart.log_probabilities, alone.log_probabilities);
    ExpectGradients(c, apart.gradients, c.gradient_stride);
    const Result in_place = Run(c, Gradients::kInPlace);
    EXPECT_EQ(in_place.loss, alone.loss);
    ExpectGradients(c, in_place.gradients, c.stride);
  }

  Random random_{19};
  std::vector<float> logits_;
  std::vector<int32_t> labels_;
  std::vector<float> weights_;
};

TEST_F(CrossEntropy, ABlockHasARow) {
  Check({136, 133, 4096, 4096, 4096});
  Check({133, 132, 4101, 4104, 4104});  // the last chunk is partial
  Check({132, 132, 4103, 4104, 4103});  // and gradients are stored one by one
}

TEST_F(CrossEntropy, SeveralBlocksShareARow) {
  Check({7, 5, 9001, 9004, 9008});
  Check({3, 3, 9001, 9001, 9001});
  Check({5, 4, 9001, 9004, 9003});
  Check({2, 1, 1, 1, 1});
}

TEST_F(CrossEntropy, RowsThatSharedMemoryDoesNotHoldHaveSeveralBlocksEach) {
  Check({133, 132, 4101, 4104, 4104, 4101 * 4});
}

}  // namespace
}  // namespace shoal::worker::cuda
