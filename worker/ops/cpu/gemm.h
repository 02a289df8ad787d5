// Single-threaded matrix products: oneDNN's, behind a bounded cache of compiled kernels. On a CPU
// with AMX, cpu/amx_gemm.h does bf16 products without compiling, except those too thin for it; on
// one without AVX-512 their operands are widened to fp32, which is slow and exact.
//
// Each product runs on the calling thread; cpu/matmul.cc splits a large one over the pool's
// threads. So oneDNN never starts its own threads, which would compete with the pool's for the
// cores and make results depend on their number. Compiling a kernel takes 0.2-2 ms and serves only
// one exact shape, so callers keep the number of shapes small.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/ops/cpu/gemm_shape.h"

namespace shoal::worker::cpu {

class GemmKernel;

// Thread-safe.
class GemmCache {
 public:
  explicit GemmCache(int64_t capacity = 768);
  ~GemmCache();

  // Runs the product on the calling thread; oneDNN's are compiled on first use.
  void Run(const GemmShape& shape, const void* a, const void* b, void* c);
  // Same as above for a piece of a product that AMX takes, however thin the piece is.
  void RunOnAmx(const GemmShape& shape, const void* a, const void* b, void* c);

  // Returns the first failure since the last call.
  absl::Status TakeStatus();
  int64_t compiled() const;  // kernels compiled so far, for tests and benchmarks

 private:
  struct Entry {
    std::shared_ptr<const GemmKernel> kernel;
    std::list<GemmShape>::iterator use;
  };
  std::shared_ptr<const GemmKernel> Get(const GemmShape& shape);
  void RunWidened(const GemmShape& shape, const void* a, const void* b, void* c);
  void Fail(const GemmShape& shape, const char* reason);

  const int64_t capacity_;
  mutable absl::Mutex mutex_;
  std::list<GemmShape> by_use_ ABSL_GUARDED_BY(mutex_);  // most recent first
  std::map<GemmShape, Entry> kernels_ ABSL_GUARDED_BY(mutex_);
  int64_t compiled_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker::cpu
