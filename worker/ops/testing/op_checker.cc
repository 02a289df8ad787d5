#include "worker/ops/testing/op_checker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::worker {
namespace {

constexpr std::byte kPoison{0xFF};  // NaN in every type of floats

double ValueAt(ArrayType type, const std::byte* at) {
  switch (type) {
    case ArrayType::kF32: {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case ArrayType::kBF16: {
      BFloat16 value;
      std::memcpy(&value, at, sizeof(value));
      return static_cast<float>(value);
    }
    case ArrayType::kF64: {
      double value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case ArrayType::kI32: {
      int32_t value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
  }
  return 0;
}

void SetValue(ArrayType type, double value, std::byte* at) {
  if (type == ArrayType::kF32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(at, &narrow, sizeof(narrow));
  } else {
    const BFloat16 narrow(static_cast<float>(value));
    std::memcpy(at, &narrow, sizeof(narrow));
  }
}

struct Shape {
  ArrayType type;
  int64_t rows;
  int64_t columns;
  int64_t stride;
  int64_t offset;
};

// Raises check.error to the largest error; describes anything else that is wrong.
void Compare(const Shape& shape, const std::vector<std::byte>& before,
             const std::vector<std::byte>& actual, const std::vector<std::byte>& expected,
             OpCheck& check) {
  const int64_t size = SizeOf(shape.type);
  double squares = 0;
  int64_t count = 0;
  std::vector<bool> inside(actual.size(), false);
  const auto for_all = [&](const auto& body) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        body(row, column, (shape.offset + row * shape.stride + column) * size);
      }
    }
  };
  for_all([&](int64_t, int64_t, int64_t at) {
    std::fill_n(inside.begin() + at, size, true);
    const double value = ValueAt(shape.type, expected.data() + at);
    if (std::isfinite(value)) {
      squares += value * value;
      ++count;
    }
  });
  const double typical = std::sqrt(squares / static_cast<double>(std::max<int64_t>(count, 1)));
  for_all([&](int64_t row, int64_t column, int64_t at) {
    const double want = ValueAt(shape.type, expected.data() + at);
    const double have = ValueAt(shape.type, actual.data() + at);
    if (std::isnan(want)) {
      return;  // nothing is asked here
    }
    if (!std::isfinite(have) && have != want) {
      if (check.wrong.empty()) {
        check.wrong = fmt::format("element [{}, {}] is {}, expected {}", row, column, have, want);
      }
    } else if (have != want) {
      check.error =
          std::max(check.error, std::abs(have - want) / std::max({typical, std::abs(want), 1e-30}));
    }
  });
  for (size_t i = 0; i < actual.size() && check.wrong.empty(); ++i) {
    if (!inside[i] && actual[i] != before[i]) {
      check.wrong = fmt::format("byte {} outside of the matrix was written", i);
    }
  }
}

}  // namespace

Matrix CheckedArray::matrix(OpSide side) {
  SHOAL_CHECK(type_ == ArrayType::kF32 || type_ == ArrayType::kBF16);
  const DType dtype = type_ == ArrayType::kF32 ? DType::kF32 : DType::kBF16;
  return {Bytes(side), dtype, rows_, columns_, stride_};
}

ConstVector CheckedArray::vector(OpSide side) {
  SHOAL_CHECK(stride_ == columns_);
  return {Bytes(side), matrix(side).dtype, rows_ * columns_};
}

OpChecker::OpChecker(Device& device, Ops& under_test, Ops& oracle, uint64_t seed, bool same_bits)
    : device_(device),
      under_test_(under_test),
      oracle_(oracle),
      random_(seed),
      same_bits_(same_bits) {}

CheckedArray OpChecker::Make(ArrayType type, int64_t rows, int64_t columns, ArrayLayout layout) {
  CheckedArray array;
  array.type_ = type;
  array.rows_ = rows;
  array.columns_ = columns;
  array.stride_ = columns + layout.padding;
  array.offset_ = layout.offset;
  // Something after the last row, too, that must not be written.
  constexpr int64_t kAfter = 16;
  const int64_t bytes = (layout.offset + rows * array.stride_ + kAfter) * SizeOf(type);
  array.host_.assign(static_cast<size_t>(bytes), kPoison);
  absl::StatusOr<Buffer> buffer = device_.Allocate(bytes);
  if (!buffer.ok()) {
    no_memory_ = Describe(buffer.status());
  } else {
    array.device_ = *std::move(buffer);
    Upload(array, array.host_);
  }
  return array;
}

double OpChecker::NextNormal() {
  constexpr size_t kDifferent = 250007;
  if (normals_.size() < kDifferent) {
    return normals_.emplace_back(random_.Normal());
  }
  next_normal_ = next_normal_ + 1 < kDifferent ? next_normal_ + 1 : 0;
  return normals_[next_normal_];
}

CheckedArray OpChecker::Normal(DType dtype, int64_t rows, int64_t columns, double deviation,
                               ArrayLayout layout) {
  CheckedArray array = Make(ToArrayType(dtype), rows, columns, layout);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      SetValue(array.type_, NextNormal() * deviation,
               array.Bytes(OpSide::kOracle) + (row * array.stride_ + column) * SizeOf(array.type_));
    }
  }
  Upload(array, array.host_);
  return array;
}

CheckedArray OpChecker::Output(ArrayType type, int64_t rows, int64_t columns, ArrayLayout layout) {
  return Make(type, rows, columns, layout);
}

CheckedArray OpChecker::Integers(const std::vector<int32_t>& values) {
  CheckedArray array = Make(ArrayType::kI32, 1, static_cast<int64_t>(values.size()), {});
  std::memcpy(array.host_.data(), values.data(), values.size() * sizeof(int32_t));
  Upload(array, array.host_);
  return array;
}

CheckedArray OpChecker::Double(double value) {
  CheckedArray array = Make(ArrayType::kF64, 1, 1, {});
  std::memcpy(array.host_.data(), &value, sizeof(value));
  Upload(array, array.host_);
  return array;
}

void OpChecker::Upload(const CheckedArray& array, const std::vector<std::byte>& bytes) {
  if (array.device_.data() != nullptr) {
    under_test_.stream().Copy(array.device_.data(), bytes.data(),
                              static_cast<int64_t>(bytes.size()));
  }
}

std::vector<std::byte> OpChecker::Download(const CheckedArray& array) {
  std::vector<std::byte> bytes(array.host_.size());
  under_test_.stream().Copy(bytes.data(), array.device_.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

void OpChecker::Finish(OpCheck& check, Ops& ops) {
  const absl::Status status = ops.Finish();
  if (!status.ok() && check.wrong.empty()) {
    check.wrong = Describe(status);
  }
}

void OpChecker::Check(std::string name, double bound, std::initializer_list<CheckedArray*> outputs,
                      const Operator& op, std::initializer_list<CheckedArray*> clobbered) {
  OpCheck check{.name = std::move(name), .bound = bound, .wrong = no_memory_};
  if (!check.wrong.empty()) {
    results_.push_back(std::move(check));
    return;
  }
  // Outputs before, and after each of two runs.
  std::vector<std::vector<std::byte>> before;
  std::vector<std::vector<std::byte>> actual;
  for (CheckedArray* array : outputs) {
    before.push_back(array->host_);
  }
  for (const bool again : {false, true}) {
    size_t i = 0;
    for (CheckedArray* array : outputs) {
      Upload(*array, before[i++]);
    }
    for (CheckedArray* array : clobbered) {
      Upload(*array, array->host_);
    }
    op(under_test_, OpSide::kUnderTest);
    std::vector<std::vector<std::byte>> results;
    for (CheckedArray* array : outputs) {
      results.push_back(Download(*array));
    }
    Finish(check, under_test_);
    if (again && same_bits_ && results != actual && check.wrong.empty()) {
      check.wrong = "two runs give different bits";
    }
    actual = std::move(results);
  }
  std::vector<std::vector<std::byte>> inputs;
  for (CheckedArray* array : clobbered) {
    inputs.push_back(array->host_);
  }
  op(oracle_, OpSide::kOracle);
  Finish(check, oracle_);
  size_t i = 0;
  for (CheckedArray* array : outputs) {
    Compare({array->type_, array->rows_, array->columns_, array->stride_, array->offset_},
            before[i], actual[i], array->host_, check);
    Upload(*array, array->host_);
    ++i;
  }
  i = 0;
  for (CheckedArray* array : clobbered) {
    array->host_ = std::move(inputs[i++]);
    Upload(*array, array->host_);
  }
  Finish(check, under_test_);
  results_.push_back(std::move(check));
}

std::vector<OpCheck> OpChecker::TakeResults() { return std::exchange(results_, {}); }

}  // namespace shoal::worker
