// store_bench [threads]: measures the store's kernels against a streaming triad, as `shoal bench
// store` does.
#include <cstdio>

#include "core/base/status.h"
#include "server/store/bench.h"

int main(int argc, char** argv) {
  const auto report = shoal::server::RunStoreBench({.threads = argc > 1 ? std::atoi(argv[1]) : 0});
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", shoal::Describe(report.status()).c_str());
    return 1;
  }
  std::fputs(shoal::server::FormatStoreBenchTable(*report).c_str(), stdout);
  return 0;
}
