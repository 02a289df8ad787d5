#include <cstring>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

template <typename From, typename To>
struct ConvertRow {
  SHOAL_INLINE void Run(const From* in, int64_t columns, To* out) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(Load(in + j), out + j);
    }
  }
};

}  // namespace

void Convert(Context& context, ConstMatrix in, Matrix out) {
  SHOAL_CHECK(in.rows == out.rows && in.columns == out.columns);
  WithType(in.dtype, [&]<typename From>() {
    WithType(out.dtype, [&]<typename To>() {
      ForRows(context, out.rows, out.columns, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          Dispatch<ConvertRow<From, To>>(in.row<From>(t), out.columns, out.row<To>(t));
        }
      });
    });
  });
}

void Zero(Context& context, Matrix out) {
  ForRows(context, out.rows, out.columns, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memset(out.Rows(t, 1).data, 0, static_cast<size_t>(out.columns * SizeOf(out.dtype)));
    }
  });
}

}  // namespace shoal::worker::cpu
