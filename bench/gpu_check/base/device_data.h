// Random data in device memory. Zeros would flatter: chips run faster on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "worker/backend/backend.h"
#include "worker/ops/tensor.h"

namespace shoal::bench {

// Fills `to` with normal values of that deviation: at most a quarter of a million different ones,
// repeated at a distance that is no power of two. kF32 or kBF16. Blocks until done.
absl::Status FillNormal(worker::Stream& stream, void* to, DType dtype, int64_t count,
                        double deviation, uint64_t seed);

// Blocks until done.
absl::Status CopyNow(worker::Stream& stream, void* to, const void* from, int64_t bytes);

// Matrices and vectors, freed with this object.
class DeviceData {
 public:
  DeviceData(worker::Device& device, worker::Stream& stream, uint64_t seed)
      : device_(device), stream_(stream), seed_(seed) {}

  absl::StatusOr<worker::Matrix> Normal(DType dtype, int64_t rows, int64_t columns,
                                        double deviation = 1.0);
  absl::StatusOr<const int32_t*> Integers(std::span<const int32_t> values);
  absl::StatusOr<void*> Zeros(int64_t bytes);

 private:
  absl::StatusOr<std::byte*> Take(int64_t bytes);

  worker::Device& device_;
  worker::Stream& stream_;
  uint64_t seed_;
  std::vector<worker::Buffer> buffers_;
};

}  // namespace shoal::bench
