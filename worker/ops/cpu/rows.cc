#include <cstring>

#include "worker/ops/cpu/cpu_kernels.h"

namespace shoal::worker::cpu {

void GatherRows(Context& context, ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) {
  SHOAL_CHECK(count <= out.rows && in.columns == out.columns && in.dtype == out.dtype);
  const auto row_bytes = static_cast<size_t>(out.columns * SizeOf(out.dtype));
  ForRows(context, out.rows, out.columns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i < count) {
        std::memcpy(out.Rows(i, 1).data, in.Rows(rows[i], 1).data, row_bytes);
      } else {
        std::memset(out.Rows(i, 1).data, 0, row_bytes);
      }
    }
  });
}

void ScatterRows(Context& context, ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) {
  SHOAL_CHECK(count <= in.rows && in.columns == out.columns && in.dtype == out.dtype);
  const auto row_bytes = static_cast<size_t>(out.columns * SizeOf(out.dtype));
  ForRows(context, count, out.columns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out.Rows(rows[i], 1).data, in.Rows(i, 1).data, row_bytes);
    }
  });
}

}  // namespace shoal::worker::cpu
