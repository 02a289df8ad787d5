#include "bench/gpu_check/base/timing.h"

#include <algorithm>
#include <cmath>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

constexpr int kBatches = 7;
constexpr int64_t kMostCalls = 1000;  // per batch
// Warm-up, in batches: first runs load kernels, and an idle GPU takes a while to raise its clock.
constexpr double kWarmUpBatches = 10;

}  // namespace

absl::StatusOr<double> MedianSeconds(worker::Ops& ops, double batch_seconds,
                                     const std::function<void(int64_t number)>& call) {
  int64_t number = 0;
  const auto batch = [&](int64_t calls) -> absl::StatusOr<double> {
    const absl::Time begin = absl::Now();
    for (int64_t i = 0; i < calls; ++i) {
      call(number++);
    }
    SHOAL_RETURN_IF_ERROR(ops.Finish());
    return absl::ToDoubleSeconds(absl::Now() - begin);
  };
  const absl::Time begin = absl::Now();
  do {
    SHOAL_RETURN_IF_ERROR(batch(2).status());
  } while (absl::Now() - begin < absl::Seconds(kWarmUpBatches * batch_seconds));
  SHOAL_ASSIGN_OR_RETURN(const double two, batch(2));
  const double wanted = std::ceil(batch_seconds / std::max(two / 2, 1e-7));
  const auto calls = static_cast<int64_t>(std::clamp(wanted, 1.0, double{kMostCalls}));
  std::vector<double> seconds;
  for (int i = 0; i < kBatches; ++i) {
    SHOAL_ASSIGN_OR_RETURN(const double taken, batch(calls));
    seconds.push_back(taken / static_cast<double>(calls));
  }
  return Median(std::move(seconds));
}

}  // namespace shoal::bench
