#include "worker/job/peak_flops.h"

#include <algorithm>
#include <memory>
#include <new>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

constexpr int64_t kSmallest = 256;  // rows and columns
constexpr int64_t kLargest = 4096;
constexpr int kRounds = 3;
constexpr double kLongEnough = 2e-3;  // seconds of a product

// Zeroed.
absl::StatusOr<std::shared_ptr<std::byte>> NewMatrix(Device& device, int64_t bytes) {
  if (device.asynchronous()) {
    return device.AllocateShared(bytes);
  }
  constexpr std::align_val_t kAlignment{kBufferAlignment};
  auto* const data = static_cast<std::byte*>(operator new(static_cast<size_t>(bytes), kAlignment));
  std::fill_n(data, bytes, std::byte{0});
  return std::shared_ptr<std::byte>(
      data, [kAlignment](std::byte* memory) { operator delete(memory, kAlignment); });
}

// Returns the shortest of a few products.
absl::StatusOr<double> MeasureProduct(const ComputeDevice& compute_device, DType type,
                                      int64_t size) {
  std::shared_ptr<std::byte> matrices[3];
  for (std::shared_ptr<std::byte>& matrix : matrices) {
    SHOAL_ASSIGN_OR_RETURN(matrix, NewMatrix(*compute_device.device, size * size * SizeOf(type)));
  }
  const auto dense = [&](int i) { return Matrix::Dense(matrices[i].get(), type, size, size); };
  const MatmulArgs product{.a = dense(0), .b = dense(1), .c = dense(2)};
  double shortest = 0;
  for (int round = 0; round < kRounds; ++round) {
    const absl::Time begin = RealClock().Now();
    compute_device.ops->Matmul(product);
    SHOAL_RETURN_IF_ERROR(compute_device.ops->Finish());
    const double seconds = absl::ToDoubleSeconds(RealClock().Now() - begin);
    shortest = round == 0 ? seconds : std::min(shortest, seconds);
  }
  return std::max(shortest, 1e-9);
}

}  // namespace

absl::StatusOr<double> MeasurePeakFlops(const ComputeDevice& compute_device, DType type) {
  double best = 0;
  for (int64_t size = kSmallest; size <= kLargest; size *= 2) {
    SHOAL_ASSIGN_OR_RETURN(const double seconds, MeasureProduct(compute_device, type, size));
    const auto side = static_cast<double>(size);
    best = std::max(best, 2 * side * side * side / seconds);
    if (seconds >= kLongEnough) {
      break;
    }
  }
  return best;
}

}  // namespace shoal::worker
