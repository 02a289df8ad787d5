#include "worker/backend/open/copy_rates.h"

#include <algorithm>
#include <memory>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

constexpr int kRounds = 3;  // the best counts: the first round pays for one-time costs

struct CopyPaths {
  std::unique_ptr<Stream> inward;
  std::unique_ptr<Stream> outward;
  Buffer from;
  Buffer to;
  Buffer on_device_in;
  Buffer on_device_out;
};

// Returns the bytes per second copied.
absl::StatusOr<double> Run(const CopyPaths& paths, bool in, bool out) {
  const int64_t bytes = paths.from.bytes();
  const absl::Time begin = RealClock().Now();
  if (in) {
    paths.inward->Copy(paths.on_device_in.data(), paths.from.data(), bytes);
  }
  if (out) {
    paths.outward->Copy(paths.to.data(), paths.on_device_out.data(), bytes);
  }
  SHOAL_RETURN_IF_ERROR(paths.inward->Synchronize());
  SHOAL_RETURN_IF_ERROR(paths.outward->Synchronize());
  const double seconds = absl::ToDoubleSeconds(RealClock().Now() - begin);
  return static_cast<double>(bytes * (in && out ? 2 : 1)) / std::max(seconds, 1e-9);
}

}  // namespace

absl::StatusOr<CopyRates> MeasureCopyRates(Device& device, int64_t bytes) {
  const std::unique_ptr<Memory> host = device.NewHostMemory(0);
  CopyPaths paths;
  paths.inward = device.NewStream(StreamKind::kCopy);
  paths.outward = device.NewStream(StreamKind::kCopy);
  SHOAL_ASSIGN_OR_RETURN(paths.from, host->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(paths.to, host->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(paths.on_device_in, device.Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(paths.on_device_out, device.Allocate(bytes));
  CopyRates rates;
  for (int round = 0; round < kRounds; ++round) {
    SHOAL_ASSIGN_OR_RETURN(const double to_device, Run(paths, true, false));
    SHOAL_ASSIGN_OR_RETURN(const double to_host, Run(paths, false, true));
    SHOAL_ASSIGN_OR_RETURN(const double both, Run(paths, true, true));
    rates.to_device = std::max(rates.to_device, to_device);
    rates.to_host = std::max(rates.to_host, to_host);
    rates.both = std::max(rates.both, both);
  }
  return rates;
}

}  // namespace shoal::worker
