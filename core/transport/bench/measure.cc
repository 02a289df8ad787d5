#include "core/transport/bench/measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr int64_t kBytesInFlight = 8 * kMiB;
constexpr int64_t kMostInFlight = 64;
constexpr size_t kMostLatencySamples = 2000;
// Each block is timed by itself, as other systems' programs do. Where it takes less than this, so
// many are timed together.
constexpr double kShortLatencySeconds = 10e-6;
constexpr int kInTurn = 16;

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// RealClock's arithmetic would be a part of what is measured.
double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int64_t OperationsInFlight(int64_t bytes) {
  return std::clamp<int64_t>(kBytesInFlight / bytes, 2, kMostInFlight);
}

absl::Status MeasureOnce(Load& load, absl::Duration time, Speed& speed) {
  const double cpu = CpuSeconds();
  const absl::Time start = RealClock().Now();
  SHOAL_ASSIGN_OR_RETURN(const int64_t bytes, load.Run(time));
  const double seconds = absl::ToDoubleSeconds(RealClock().Now() - start);
  speed.bytes_per_second.push_back(static_cast<double>(bytes) / seconds);
  speed.cpu_seconds_per_gb.push_back((CpuSeconds() - cpu) / (static_cast<double>(bytes) * 1e-9));
  return absl::OkStatus();
}

absl::StatusOr<double> MedianLatency(Load& load, absl::Duration time) {
  std::vector<double> samples;
  samples.reserve(kMostLatencySamples);
  double start = SteadySeconds();
  const double end = start + absl::ToDoubleSeconds(time);
  for (int blocks = 1; start < end && samples.size() < kMostLatencySamples;) {
    SHOAL_RETURN_IF_ERROR(load.MoveInTurn(blocks));
    const double now = SteadySeconds();
    samples.push_back((now - start) / blocks);
    blocks = samples.back() < kShortLatencySeconds ? kInTurn : 1;
    start = now;
  }
  return Median(std::move(samples));
}

}  // namespace shoal::transport
