// What a server computes for its partitions, on flat arrays in device memory: sums of gradients and
// AdamW. gpu_flat_kernels.h makes it for a GPU, cpu_flat_kernels.h for the CPU, the oracle.
//
// Work goes on the stream; arrays must stay valid until it is done. Returns failures to enqueue.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "server/store/accumulate.h"
#include "server/store/optimizer.h"
#include "worker/backend/backend.h"

namespace shoal::bench {

struct AdamWArrays {
  const float* gradient = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  void* weights = nullptr;   // overwritten
  DType type = DType::kF32;  // of the weights
  int64_t count = 0;

  // Bytes read and written.
  int64_t bytes() const { return count * (4 * 4 + 3 * 4 + SizeOf(type)); }
};

class FlatKernels {
 public:
  virtual ~FlatKernels() = default;

  virtual absl::Status AdamW(worker::Stream& stream, const server::UpdateScalars& scalars,
                             const AdamWArrays& arrays) const = 0;
  virtual absl::Status Add(worker::Stream& stream, const void* gradient, DType type,
                           float* accumulator, int64_t count) const = 0;
  // refused[RefusedCounts(count)], zeroed by the caller, sums to the number of elements not added.
  virtual int64_t RefusedCounts(int64_t count) const = 0;
  virtual absl::Status AddExact(worker::Stream& stream, const void* gradient, DType type,
                                int64_t* accumulator, int64_t* refused, int64_t count) const = 0;
  virtual absl::Status ExactToFloat(worker::Stream& stream, const int64_t* accumulator,
                                    float* value, int64_t count) const = 0;
  // Writes one for each server::kReductionChunk elements.
  virtual absl::Status Statistics(worker::Stream& stream, const float* gradient,
                                  server::GradientStatistics* chunks, int64_t count) const = 0;
};

}  // namespace shoal::bench
