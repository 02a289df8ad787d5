// Reference results for tests of operators: double-precision forward passes written as in the
// textbook, and their derivatives by finite differences. A test gives the operator random inputs in
// fp32 or bf16 and the oracle the same values (after rounding) in double.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/bf16.h"
#include "core/base/random.h"
#include "core/model/gate.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/ops.h"

namespace shoal::worker::oracle {

using Doubles = std::vector<double>;

// An owned matrix in fp32 or bf16, filled with normal random numbers or a constant.
class Tensor {
 public:
  Tensor(DType dtype, int64_t rows, int64_t columns, double value = 0);
  static Tensor Normal(DType dtype, int64_t rows, int64_t columns, Random& random,
                       double deviation = 1.0);

  Matrix view() { return Matrix::Dense(data(), dtype_, rows_, columns_); }
  ConstVector vector() { return {data(), dtype_, rows_ * columns_}; }
  void* data() {
    return dtype_ == DType::kF32 ? static_cast<void*>(f32_.data())
                                 : static_cast<void*>(bf16_.data());
  }
  float* f32() { return f32_.data(); }
  Doubles doubles() const;
  void Set(int64_t index, double value);
  bool SameBits(const Tensor& other) const;

 private:
  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  std::vector<float> f32_;
  std::vector<BFloat16> bf16_;
};

// How far a result may be off, relative to the root mean square of the expected values.
double Tolerance(DType dtype);
void ExpectClose(const Doubles& actual, const Doubles& expected, double tolerance,
                 const char* what);

// Compares `gradient` with central differences of sum(weights * function(x)) in a few random
// directions.
void ExpectGradient(const std::function<Doubles(const Doubles&)>& function, const Doubles& x,
                    const Doubles& weights, const Doubles& gradient, double tolerance,
                    const char* what);

// Forward passes, row-major.
Doubles Matmul(const Doubles& a, const Doubles& b, int64_t m, int64_t n, int64_t k,
               bool transpose_a, bool transpose_b);
Doubles RmsNorm(const Doubles& x, const Doubles& weight, double epsilon);
// down's input of a gated MLP with that activation.
Doubles Gated(plan::Gate gate, const Doubles& gate_up, int64_t intermediate);
double SoftCap(double x, double cap);
Doubles Attention(const Doubles& qkv, const AttentionShape& shape,
                  std::span<const int32_t> cu_seqlens);
// The sum over the rows, each times its weight.
double CrossEntropy(const Doubles& logits, std::span<const int32_t> labels,
                    std::span<const float> weights, int64_t vocabulary);

// Operators on `threads` threads, with the device that they need.
struct CpuFixture {
  explicit CpuFixture(int threads = 2)
      : device(MakeCpuDevice()), ops(MakeCpuOps(*device, threads)) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

}  // namespace shoal::worker::oracle
