#include <numeric>
#include <vector>

#include "core/base/bytes.h"
#include "worker/ops/cpu/amx_gemm.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// How a product is cut into tasks. oneDNN's rounding depends on the shape of a call, so its pieces
// depend on the shape of the product alone, never on the number of threads.

// Rows of C per product, and tokens per product where the sum is over tokens. Token counts vary by
// microbatch; cut into pieces of this size and one rest (a multiple of the padding), all of them
// need only a handful of compiled kernels per weight matrix. Smaller pieces pack B more often for
// the same work.
constexpr int64_t kPiece = 512;
// Columns of C are cut at multiples of this.
constexpr int64_t kColumnUnit = 64;
// Aimed at per piece: enough pieces for many threads. Where A is stored transposed, which each
// piece turns again, pieces are wider.
constexpr int64_t kColumnsAimedAt = 256;
constexpr int64_t kColumnsAimedAtTransposed = 512;

struct Cut {
  int64_t rows = 0;   // of a piece, but for the last
  int64_t units = 0;  // of columns, spread evenly over the parts
  int64_t parts = 0;

  int64_t Column(int64_t part) const { return part * units / parts * kColumnUnit; }
};

int64_t Units(int64_t n) { return (n + kColumnUnit - 1) / kColumnUnit; }

// An even number of parts, so that two threads end together.
Cut ForOneDnn(const MatmulArgs& args) {
  const int64_t units = Units(args.c.columns);
  const int64_t aimed_at = args.transpose_a ? kColumnsAimedAtTransposed : kColumnsAimedAt;
  const int64_t parts = RoundUp((units * kColumnUnit + aimed_at - 1) / aimed_at, 2);
  return {std::min(args.c.rows, kPiece), units, std::min(units, parts)};
}

// AMX takes any shape and packs B once for all rows given to it, so each thread gets one piece. An
// element's sum is the same in any of them: over the whole of k, in order.
Cut ForAmx(const MatmulArgs& args, int64_t threads) {
  constexpr int64_t kRowUnit = 32;
  const int64_t m = args.c.rows;
  const int64_t rows = std::min(m, RoundUp((m + threads - 1) / threads, kRowUnit));
  const int64_t row_pieces = (m + rows - 1) / rows;
  const int64_t units = Units(args.c.columns);
  return {rows, units, std::min(units, threads / std::gcd(threads, row_pieces))};
}

template <typename T>
struct AddRow {
  SHOAL_INLINE void Run(const T* addend, int64_t columns, T* c) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(Load(c + j) + Load(addend + j), c + j);
    }
  }
};

void AddRows(const ConstMatrix& addend, const Matrix& c) {
  WithType(c.dtype, [&]<typename T>() {
    for (int64_t row = 0; row < c.rows; ++row) {
      Dispatch<AddRow<T>>(addend.row<T>(row), c.columns, c.row<T>(row));
    }
  });
}

}  // namespace

void Matmul(Context& context, const MatmulArgs& args) {
  const int64_t m = args.c.rows;
  const int64_t n = args.c.columns;
  const int64_t k = args.transpose_a ? args.a.rows : args.a.columns;
  SHOAL_CHECK((args.transpose_a ? args.a.columns : args.a.rows) == m);
  SHOAL_CHECK((args.transpose_b ? args.b.rows : args.b.columns) == n);
  SHOAL_CHECK((args.transpose_b ? args.b.columns : args.b.rows) == k);
  SHOAL_CHECK(args.a.dtype == args.b.dtype &&
              (args.c.dtype == DType::kF32 || args.c.dtype == args.a.dtype));
  SHOAL_CHECK(!args.accumulate || args.c.dtype == DType::kF32);
  const bool has_addend = args.addend.data != nullptr;
  SHOAL_CHECK(!has_addend || (SameShape(args.addend, args.c) && args.addend.data != args.c.data &&
                              !args.accumulate));
  if (m == 0 || n == 0 || k == 0) {
    SHOAL_CHECK(m == 0 || n == 0 || args.accumulate);
    return;
  }
  // Only weight gradients sum over tokens, and they accumulate, so cutting k costs no extra pass
  // over C.
  const bool amx = AmxTakes({.m = m, .n = n, .k = k, .input = args.a.dtype});
  const int64_t k_piece = args.accumulate && !amx ? std::min(k, kPiece) : k;
  const Cut cut = amx ? ForAmx(args, context.pool.threads()) : ForOneDnn(args);
  const int64_t row_pieces = (m + cut.rows - 1) / cut.rows;

  context.pool.ParallelFor(row_pieces * cut.parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / cut.parts * cut.rows;
      const int64_t column = cut.Column(task % cut.parts);
      const int64_t columns = std::min(n, cut.Column(task % cut.parts + 1)) - column;
      GemmShape shape{.m = std::min(cut.rows, m - row),
                      .n = columns,
                      .a_stride = args.a.stride,
                      .b_stride = args.b.stride,
                      .c_stride = args.c.stride,
                      .input = args.a.dtype,
                      .output = args.c.dtype,
                      .transpose_a = args.transpose_a,
                      .transpose_b = args.transpose_b,
                      .accumulate = args.accumulate};
      const Matrix c = args.c.Rows(row, shape.m).Columns(column, shape.n);
      for (int64_t inner = 0; inner < k; inner += k_piece) {
        shape.k = std::min(k_piece, k - inner);
        const ConstMatrix a = args.transpose_a ? args.a.Rows(inner, shape.k).Columns(row, shape.m)
                                               : args.a.Rows(row, shape.m).Columns(inner, shape.k);
        const ConstMatrix b = args.transpose_b
                                  ? args.b.Rows(column, shape.n).Columns(inner, shape.k)
                                  : args.b.Rows(inner, shape.k).Columns(column, shape.n);
        if (amx) {  // also a thin rest
          context.gemm.RunOnAmx(shape, a.data, b.data, c.data);
        } else {
          context.gemm.Run(shape, a.data, b.data, c.data);
        }
      }
      if (has_addend) {  // the piece is still in the cache
        AddRows(args.addend.Rows(row, shape.m).Columns(column, shape.n), c);
      }
    }
  });
}

}  // namespace shoal::worker::cpu
