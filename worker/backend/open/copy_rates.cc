#include "worker/backend/open/copy_rates.h"

#include <algorithm>
#include <memory>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

constexpr int kRounds = 3;  // the best counts: the first round pays for one-time costs

struct Ways {
  std::unique_ptr<Stream> inward;
  std::unique_ptr<Stream> outward;
  Buffer from;
  Buffer to;
  Buffer on_device_in;
  Buffer on_device_out;
};

// Returns the bytes per second copied.
absl::StatusOr<double> Run(const Ways& ways, bool in, bool out) {
  const int64_t bytes = ways.from.bytes();
  const absl::Time begin = RealClock().Now();
  if (in) {
    ways.inward->Copy(ways.on_device_in.data(), ways.from.data(), bytes);
  }
  if (out) {
    ways.outward->Copy(ways.to.data(), ways.on_device_out.data(), bytes);
  }
  SHOAL_RETURN_IF_ERROR(ways.inward->Synchronize());
  SHOAL_RETURN_IF_ERROR(ways.outward->Synchronize());
  const double seconds = absl::ToDoubleSeconds(RealClock().Now() - begin);
  return static_cast<double>(bytes * (in && out ? 2 : 1)) / std::max(seconds, 1e-9);
}

}  // namespace

absl::StatusOr<CopyRates> MeasureCopyRates(Device& device, int64_t bytes) {
  const std::unique_ptr<Memory> host = device.NewHostMemory(0);
  Ways ways;
  ways.inward = device.NewStream(StreamKind::kCopy);
  ways.outward = device.NewStream(StreamKind::kCopy);
  SHOAL_ASSIGN_OR_RETURN(ways.from, host->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(ways.to, host->Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(ways.on_device_in, device.Allocate(bytes));
  SHOAL_ASSIGN_OR_RETURN(ways.on_device_out, device.Allocate(bytes));
  CopyRates rates;
  for (int round = 0; round < kRounds; ++round) {
    SHOAL_ASSIGN_OR_RETURN(const double to_device, Run(ways, true, false));
    SHOAL_ASSIGN_OR_RETURN(const double to_host, Run(ways, false, true));
    SHOAL_ASSIGN_OR_RETURN(const double both, Run(ways, true, true));
    rates.to_device = std::max(rates.to_device, to_device);
    rates.to_host = std::max(rates.to_host, to_host);
    rates.both = std::max(rates.both, both);
  }
  return rates;
}

}  // namespace shoal::worker
