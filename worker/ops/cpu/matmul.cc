#include <numeric>
#include <vector>

#include "core/base/bytes.h"
#include "worker/ops/cpu/amx_gemm.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// Rows of C per product, and tokens per product where the sum is over tokens. Token counts vary by
// microbatch; cut into pieces of this size and one rest (a multiple of the padding), all of them
// need only a handful of compiled kernels per weight matrix. Smaller pieces pack B more often for
// the same work.
constexpr int64_t kPiece = 512;
// Columns of C are cut only to occupy every thread, at multiples of this.
constexpr int64_t kColumnUnit = 64;

// Cuts n columns so that `row_pieces` times the parts are even over the threads.
int64_t ColumnsPerPart(int64_t n, int64_t row_pieces, int64_t threads) {
  const int64_t parts = row_pieces >= 4 * threads ? 1 : threads / std::gcd(threads, row_pieces);
  return std::min(n, RoundUp((n + parts - 1) / parts, kColumnUnit));
}

// AMX takes any shape, and packs B once for all rows given to it.
int64_t RowsPerThread(int64_t m, int64_t threads) {
  constexpr int64_t kRowUnit = 32;
  return std::min(m, RoundUp((m + threads - 1) / threads, kRowUnit));
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
  const int64_t m_piece = amx ? RowsPerThread(m, context.pool.threads()) : std::min(m, kPiece);
  const int64_t row_pieces = (m + m_piece - 1) / m_piece;
  const int64_t n_part = ColumnsPerPart(n, row_pieces, context.pool.threads());
  const int64_t column_parts = (n + n_part - 1) / n_part;

  context.pool.ParallelFor(row_pieces * column_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / column_parts * m_piece;
      const int64_t column = task % column_parts * n_part;
      GemmShape shape{.m = std::min(m_piece, m - row),
                      .n = std::min(n_part, n - column),
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
        context.gemm.Run(shape, a.data, b.data, c.data);
      }
      if (has_addend) {  // the piece is still in the cache
        AddRows(args.addend.Rows(row, shape.m).Columns(column, shape.n), c);
      }
    }
  });
}

}  // namespace shoal::worker::cpu
