#include "worker/ops/cuda/matmul/testing/products.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker::cuda {
namespace {

using oracle::Doubles;
using oracle::Tensor;

// A matrix as a view into a wider one, in host memory and as a copy in device memory.
class Placed {
 public:
  Placed(DType dtype, int64_t rows, int64_t columns, int64_t gap, int64_t offset)
      : rows_(rows),
        columns_(columns),
        stride_(columns + gap),
        offset_(offset),
        count_(offset + rows * (columns + gap)),
        host_(dtype, 1, count_, std::numeric_limits<double>::quiet_NaN()),
        dtype_(dtype) {
    SHOAL_CHECK(cudaMalloc(&device_, bytes()) == cudaSuccess);
  }
  ~Placed() { (void)cudaFree(device_); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  void FillNormal(Random& random) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        host_.Set(At(i, j), random.Normal());
      }
    }
  }
  void Upload() {
    SHOAL_CHECK(cudaMemcpy(device_, host_.data(), bytes(), cudaMemcpyHostToDevice) == cudaSuccess);
    // A copy from pageable memory returns once its last bytes are staged, and the test's stream
    // does not wait for them.
    SHOAL_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
  void Download() {
    SHOAL_CHECK(cudaMemcpy(host_.data(), device_, bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
  }
  // Without the gaps.
  Doubles Values() const {
    const Doubles all = host_.doubles();
    Doubles values;
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        values.push_back(all[static_cast<size_t>(At(i, j))]);
      }
    }
    return values;
  }
  // Whether the gaps are still NaN.
  bool IsOtherwiseNan() const {
    const Doubles all = host_.doubles();
    for (int64_t i = 0; i < count_; ++i) {
      const bool around = i < offset_ || (i - offset_) % stride_ >= columns_;
      if (around && !std::isnan(all[static_cast<size_t>(i)])) {
        return false;
      }
    }
    return true;
  }
  Matrix view() const {
    return {static_cast<std::byte*>(device_) + offset_ * SizeOf(dtype_), dtype_, rows_, columns_,
            stride_};
  }
  size_t bytes() const { return static_cast<size_t>(count_ * SizeOf(dtype_)); }
  const std::byte* host_bytes() { return static_cast<const std::byte*>(host_.data()); }

 private:
  int64_t At(int64_t row, int64_t column) const { return offset_ + row * stride_ + column; }

  const int64_t rows_;
  const int64_t columns_;
  const int64_t stride_;
  const int64_t offset_;
  const int64_t count_;
  Tensor host_;
  const DType dtype_;
  void* device_ = nullptr;
};

}  // namespace

std::string MatmulCase::ToString() const {
  return fmt::format("{}[{}, {}]{} {} -> {}, {}gaps {} {} {} {}, offset {}",
                     transpose_a ? "T" : "N", m, n, k, transpose_b ? "T" : "N", Name(output),
                     accumulate ? "added, "
                     : addend   ? "with an addend, "
                                : "",
                     a_gap, b_gap, c_gap, addend_gap, offset);
}

MatmulCase RandomCase(Random& random, int64_t most, bool aligned) {
  const int64_t unit = aligned ? 8 : 1;
  MatmulCase c;
  c.transpose_a = random.Below(2) == 1;
  c.transpose_b = random.Below(2) == 1 && !(aligned && c.transpose_a);
  c.accumulate = random.Below(2) == 1;
  c.addend = !c.accumulate && random.Below(2) == 1;
  c.input = aligned || random.Below(2) == 1 ? DType::kBF16 : DType::kF32;
  c.output = c.accumulate || random.Below(2) == 1 ? DType::kF32 : c.input;
  c.m = random.Between(1, most);
  c.n = random.Between(1, most);
  c.k = random.Between(1, most);
  if (aligned && (c.transpose_b || random.Below(2) == 1)) {
    c.k = RoundUp(c.k, unit);
  }
  // Elements from a stored row's end to the next row.
  const auto gap = [&](int64_t length) {
    return RoundUp(length, unit) - length + random.Between(0, 2) * unit;
  };
  c.a_gap = gap(c.transpose_a ? c.m : c.k);
  c.b_gap = gap(c.transpose_b ? c.k : c.n);
  c.c_gap = random.Between(0, 9);
  c.addend_gap = random.Between(0, 9);
  c.offset = random.Between(0, 2) * unit;
  return c;
}

std::vector<std::byte> ExpectProduct(const MatmulCase& c, Random& random, cudaStream_t stream,
                                     const std::function<void(const MatmulArgs&)>& product) {
  SCOPED_TRACE(c.ToString());
  const auto operand = [&](bool transposed, int64_t rows, int64_t columns, int64_t gap) {
    return transposed ? Placed(c.input, columns, rows, gap, c.offset)
                      : Placed(c.input, rows, columns, gap, c.offset);
  };
  Placed a = operand(c.transpose_a, c.m, c.k, c.a_gap);
  Placed b = operand(c.transpose_b, c.k, c.n, c.b_gap);
  Placed out(c.output, c.m, c.n, c.c_gap, c.offset);
  Placed addend(c.output, c.m, c.n, c.addend_gap, c.offset);
  a.FillNormal(random);
  b.FillNormal(random);
  addend.FillNormal(random);
  Doubles expected =
      oracle::Matmul(a.Values(), b.Values(), c.m, c.n, c.k, c.transpose_a, c.transpose_b);
  if (c.accumulate) {
    out.FillNormal(random);
  }
  if (c.accumulate || c.addend) {
    const Doubles added = (c.accumulate ? out : addend).Values();
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += added[i];
    }
  }
  for (Placed* placed : {&a, &b, &out, &addend}) {
    placed->Upload();
  }
  product({.a = a.view(),
           .b = b.view(),
           .c = out.view(),
           .transpose_a = c.transpose_a,
           .transpose_b = c.transpose_b,
           .accumulate = c.accumulate,
           .addend = c.addend ? ConstMatrix(addend.view()) : ConstMatrix()});
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  out.Download();
  // Tensor cores truncate sums instead of rounding.
  oracle::ExpectClose(out.Values(), expected, c.output == DType::kF32 ? 1e-4 : 1e-2, "C");
  EXPECT_TRUE(out.IsOtherwiseNan());
  return {out.host_bytes(), out.host_bytes() + out.bytes()};
}

}  // namespace shoal::worker::cuda
