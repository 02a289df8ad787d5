#include "worker/ops/testing/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "gtest/gtest.h"

namespace shoal::worker::oracle {

Tensor::Tensor(DType dtype, int64_t rows, int64_t columns, double value)
    : dtype_(dtype), rows_(rows), columns_(columns) {
  const auto count = static_cast<size_t>(rows * columns);
  if (dtype == DType::kF32) {
    f32_.assign(count, static_cast<float>(value));
  } else {
    bf16_.assign(count, BFloat16(static_cast<float>(value)));
  }
}

Tensor Tensor::Normal(DType dtype, int64_t rows, int64_t columns, Random& random,
                      double deviation) {
  Tensor tensor(dtype, rows, columns);
  for (int64_t i = 0; i < rows * columns; ++i) {
    tensor.Set(i, random.Normal() * deviation);
  }
  return tensor;
}

Doubles Tensor::doubles() const {
  Doubles values;
  for (const float value : f32_) {
    values.push_back(value);
  }
  for (const BFloat16 value : bf16_) {
    values.push_back(static_cast<float>(value));
  }
  return values;
}

void Tensor::Set(int64_t index, double value) {
  if (dtype_ == DType::kF32) {
    f32_[static_cast<size_t>(index)] = static_cast<float>(value);
  } else {
    bf16_[static_cast<size_t>(index)] = BFloat16(static_cast<float>(value));
  }
}

bool Tensor::SameBits(const Tensor& other) const {
  const auto same = [](const auto& a, const auto& b) {
    const auto x = std::as_bytes(std::span(a));
    const auto y = std::as_bytes(std::span(b));
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  return same(f32_, other.f32_) && same(bf16_, other.bf16_);
}

double Tolerance(DType dtype) { return dtype == DType::kF32 ? 2e-5 : 3e-2; }

void ExpectClose(const Doubles& actual, const Doubles& expected, double tolerance,
                 const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double squares = 0;
  for (const double value : expected) {
    squares += value * value;
  }
  const double scale =
      std::sqrt(squares / std::max<double>(1, static_cast<double>(expected.size()))) + 1e-12;
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    // An error is relative to the element's size or the typical one, whichever is larger.
    const double error = std::abs(actual[i] - expected[i]) / std::max(scale, std::abs(expected[i]));
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
  }
  EXPECT_LE(worst, tolerance) << what << ": element " << where << " is " << actual[where]
                              << ", expected " << expected[where];
}

void ExpectGradient(const std::function<Doubles(const Doubles&)>& function, const Doubles& x,
                    const Doubles& weights, const Doubles& gradient, double tolerance,
                    const char* what) {
  constexpr double kStep = 1e-5;
  constexpr int kDirections = 6;
  ASSERT_EQ(x.size(), gradient.size()) << what;
  Random random(1234);
  const auto value = [&](const Doubles& at) {
    const Doubles result = function(at);
    EXPECT_EQ(result.size(), weights.size()) << what;
    double sum = 0;
    for (size_t i = 0; i < result.size(); ++i) {
      sum += result[i] * weights[i];
    }
    return sum;
  };
  for (int round = 0; round < kDirections; ++round) {
    Doubles up = x;
    Doubles down = x;
    double along = 0;
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double direction = random.Normal();
      up[i] += kStep * direction;
      down[i] -= kStep * direction;
      along += gradient[i] * direction;
      squares += gradient[i] * gradient[i];
    }
    const double expected = (value(up) - value(down)) / (2 * kStep);
    // A random direction's product with the gradient is about as large as the gradient's norm.
    EXPECT_NEAR(along, expected, (tolerance + 1e-7) * (std::sqrt(squares) + 1e-9) * 3) << what;
  }
}

Doubles Matmul(const Doubles& a, const Doubles& b, int64_t m, int64_t n, int64_t k,
               bool transpose_a, bool transpose_b) {
  Doubles c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<size_t>(transpose_a ? l * m + i : i * k + l)] *
               b[static_cast<size_t>(transpose_b ? j * k + l : l * n + j)];
      }
      c[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

Doubles RmsNorm(const Doubles& x, const Doubles& weight, double epsilon) {
  const size_t columns = weight.size();
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += columns) {
    double squares = 0;
    for (size_t j = 0; j < columns; ++j) {
      squares += x[row + j] * x[row + j];
    }
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(columns) + epsilon);
    for (size_t j = 0; j < columns; ++j) {
      y[row + j] = x[row + j] * inverse * weight[j];
    }
  }
  return y;
}

Doubles Gated(plan::Gate gate, const Doubles& gate_up, int64_t intermediate) {
  const auto activated = [gate](double g) {
    return gate == plan::Gate::kSilu ? g / (1.0 + std::exp(-g))
                                     : g / 2 *
                                           (1.0 + std::tanh(std::sqrt(2 / std::numbers::pi) *
                                                            (g + 0.044715 * g * g * g)));
  };
  const auto width = static_cast<size_t>(intermediate);
  Doubles out;
  for (size_t row = 0; row < gate_up.size(); row += 2 * width) {
    for (size_t j = 0; j < width; ++j) {
      out.push_back(activated(gate_up[row + j]) * gate_up[row + width + j]);
    }
  }
  return out;
}

double SoftCap(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

Doubles Attention(const Doubles& qkv, const AttentionShape& shape,
                  std::span<const int32_t> cu_seqlens) {
  const auto width = static_cast<size_t>(shape.head_dim);
  const auto stride = static_cast<size_t>(shape.qkv_size());
  const auto q_size = static_cast<size_t>(shape.q_size());
  Doubles out(qkv.size() / stride * q_size, 0.0);
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    for (size_t head = 0; head < static_cast<size_t>(shape.heads); ++head) {
      const size_t key_column =
          q_size + head / static_cast<size_t>(shape.heads / shape.kv_heads) * width;
      const size_t value_column = key_column + static_cast<size_t>(shape.kv_size());
      for (auto i = static_cast<size_t>(cu_seqlens[s]); i < static_cast<size_t>(cu_seqlens[s + 1]);
           ++i) {
        Doubles weights;
        double sum = 0;
        const auto window = shape.window > 0 ? static_cast<size_t>(shape.window) : i + 1;
        const size_t first =
            std::max(static_cast<size_t>(cu_seqlens[s]), i + 1 - std::min(window, i + 1));
        for (size_t j = first; j <= i; ++j) {
          double score = 0;
          for (size_t d = 0; d < width; ++d) {
            score += qkv[i * stride + head * width + d] * qkv[j * stride + key_column + d];
          }
          weights.push_back(std::exp(SoftCap(score * shape.scale(), shape.softcap)));
          sum += weights.back();
        }
        for (size_t j = 0; j < weights.size(); ++j) {
          const size_t row = (first + j) * stride + value_column;
          for (size_t d = 0; d < width; ++d) {
            out[i * q_size + head * width + d] += weights[j] / sum * qkv[row + d];
          }
        }
      }
    }
  }
  return out;
}

double CrossEntropy(const Doubles& logits, std::span<const int32_t> labels,
                    std::span<const float> weights, int64_t vocabulary) {
  double loss = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double* row = logits.data() + i * static_cast<size_t>(vocabulary);
    const double largest = *std::max_element(row, row + vocabulary);
    double sum = 0;
    for (int64_t j = 0; j < vocabulary; ++j) {
      sum += std::exp(row[j] - largest);
    }
    loss += static_cast<double>(weights[i]) * (std::log(sum) + largest - row[labels[i]]);
  }
  return loss;
}

}  // namespace shoal::worker::oracle
