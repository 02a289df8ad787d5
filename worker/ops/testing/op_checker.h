// Runs an operator of two tables on the same random inputs and compares: the table under test,
// whose device may be a GPU, and the CPU's, which is the oracle. Used by check_ops.h and by tests
// of single operators.
//
// Outputs start as NaN, so that unwritten elements show; elements between the rows of a matrix and
// beyond its ends must not change. The operator under test runs twice and must give the same bits,
// if its table promises that. Afterwards both sides hold the oracle's results, so errors do not add
// up over operators.
//
// For one thread. Ownership: arrays belong to their caller and must be destroyed before the
// checker's device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/random.h"
#include "worker/backend/backend.h"
#include "worker/ops/ops.h"

namespace shoal::worker {

struct OpCheck {
  std::string name;  // "RmsNormForward bf16 37x72"
  // The largest |result - expected| / max(|expected|, root mean square of what is expected).
  double error = 0;
  double bound = 0;
  // What is wrong regardless of size: a device failure, NaN, a write outside the output, two runs
  // that differ. Empty if nothing.
  std::string wrong;
  bool passed() const { return wrong.empty() && error <= bound; }
};

enum class OpSide : uint8_t { kUnderTest, kOracle };

enum class ArrayType : uint8_t { kF32, kBF16, kF64, kI32 };
constexpr int64_t SizeOf(ArrayType type) {
  return type == ArrayType::kF64 ? 8 : type == ArrayType::kBF16 ? 2 : 4;
}
constexpr ArrayType ToArrayType(DType dtype) {
  return dtype == DType::kF32 ? ArrayType::kF32 : ArrayType::kBF16;
}

// Where a matrix lies in its memory.
struct ArrayLayout {
  int64_t padding = 0;  // elements between rows
  int64_t offset = 0;   // elements before the first
};

// A matrix on both sides: in memory of the device under test, and of the host for the oracle.
class CheckedArray {
 public:
  Matrix matrix(OpSide side);  // only fp32 and bf16
  ConstVector vector(OpSide side);
  template <typename T>
  T* data(OpSide side) {
    return reinterpret_cast<T*>(Bytes(side));
  }

 private:
  friend class OpChecker;
  std::byte* Bytes(OpSide side) {
    return (side == OpSide::kOracle ? host_.data() : device_.data()) + offset_ * SizeOf(type_);
  }

  ArrayType type_ = ArrayType::kF32;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t stride_ = 0;
  int64_t offset_ = 0;
  std::vector<std::byte> host_;
  Buffer device_;
};

class OpChecker {
 public:
  // All must outlive the checker; `under_test` computes on `device`. `same_bits`: two runs must
  // give the same bits.
  OpChecker(Device& device, Ops& under_test, Ops& oracle, uint64_t seed, bool same_bits = true);

  Random& random() { return random_; }
  CheckedArray Normal(DType dtype, int64_t rows, int64_t columns, double deviation = 1,
                      ArrayLayout layout = {});
  // Full of NaN.
  CheckedArray Output(ArrayType type, int64_t rows, int64_t columns, ArrayLayout layout = {});
  CheckedArray Output(DType dtype, int64_t rows, int64_t columns, ArrayLayout layout = {}) {
    return Output(ToArrayType(dtype), rows, columns, layout);
  }
  CheckedArray Integers(const std::vector<int32_t>& values);
  CheckedArray Double(double value);

  using Operator = std::function<void(Ops& ops, OpSide side)>;
  // Compares `outputs`; arrays in `clobbered` are undefined afterwards and are restored.
  void Check(std::string name, double bound, std::initializer_list<CheckedArray*> outputs,
             const Operator& op, std::initializer_list<CheckedArray*> clobbered = {});

  std::vector<OpCheck> TakeResults();

 private:
  // A normal value; the first ones drawn repeat, at a distance that is a prime.
  double NextNormal();
  CheckedArray Make(ArrayType type, int64_t rows, int64_t columns, ArrayLayout layout);
  void Upload(const CheckedArray& array, const std::vector<std::byte>& bytes);
  std::vector<std::byte> Download(const CheckedArray& array);
  void Finish(OpCheck& check, Ops& ops);

  Device& device_;
  Ops& under_test_;
  Ops& oracle_;
  Random random_;
  const bool same_bits_;
  std::vector<double> normals_;
  size_t next_normal_ = 0;
  std::vector<OpCheck> results_;
  std::string no_memory_;  // why an array has none on the device
};

}  // namespace shoal::worker
