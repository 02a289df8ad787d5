// The cost of a step without computing or moving weights: coordinator, 2 servers and 4 workers in
// one process over real gRPC on loopback, with the durable record in SQLite. Bar: 5 ms.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "server/coordinator/testing/loopback_cluster.h"

namespace {

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

// control_plane_bench [STEPS]
int main(int argc, char** argv) {
  constexpr double kBarMs = 5.0;
  const int64_t steps = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 500;
  shoal::InitLogging({.role = "bench", .level = "off"});
  const std::string state =
      (std::filesystem::temp_directory_path() / ("control-plane-" + shoal::SecureToken())).string();
  const auto result = shoal::server::testing::RunLoopback({.steps = steps, .state_file = state});
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(state + suffix);
  }
  if (!result.ok() || result->step_seconds.empty()) {
    fmt::print(stderr, "control_plane_bench: {}\n", shoal::Describe(result.status()));
    return 1;
  }
  const double median = Quantile(result->step_seconds, 0.5) * 1e3;
  fmt::print(
      "control plane, 2 servers, 4 workers, {} steps: median {:.3f} ms, p99 {:.3f} ms; {:.2f} of "
      "the bar of {} ms\n",
      steps, median, Quantile(result->step_seconds, 0.99) * 1e3, median / kBarMs, kBarMs);
  return 0;
}
