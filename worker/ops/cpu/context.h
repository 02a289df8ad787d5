// State shared by the CPU operators: threads, matrix products, and the first failure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/base/dtype.h"
#include "core/base/threads/thread_pool.h"
#include "worker/ops/cpu/gemm.h"
#include "worker/ops/tensor.h"

namespace shoal::worker::cpu {

struct Context {
  ThreadPool& pool;
  GemmCache& gemm;
};

// Ranges below this many elements cost more to hand to another thread than they save.
inline constexpr int64_t kElementsPerRange = 16 * 1024;

// Calls body(begin, end) over rows, in ranges that are worth a thread.
inline void ForRows(Context& context, int64_t rows, int64_t elements_per_row,
                    const std::function<void(int64_t, int64_t)>& body) {
  const int64_t grain =
      std::max<int64_t>(1, kElementsPerRange / std::max<int64_t>(1, elements_per_row));
  context.pool.ParallelFor(rows, grain, body);
}

// Calls function.operator()<float>() or <BFloat16>() by the element type.
template <typename Function>
void WithType(DType dtype, Function&& function) {
  if (dtype == DType::kF32) {
    function.template operator()<float>();
  } else {
    SHOAL_CHECK(dtype == DType::kBF16);
    function.template operator()<BFloat16>();
  }
}

inline bool SameShape(const ConstMatrix& a, const ConstMatrix& b) {
  return a.rows == b.rows && a.columns == b.columns && a.dtype == b.dtype;
}

}  // namespace shoal::worker::cpu
