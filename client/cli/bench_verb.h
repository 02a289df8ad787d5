// `shoal bench transport|store`: how fast this machine does what a step is made of, each figure
// with what it is a fraction of in the same run. The measuring is done by the libraries themselves.
#pragma once

#include <string>
#include <vector>

#include "client/cli/verb.h"

namespace shoal::cli {

struct BenchTransportOptions {
  std::vector<std::string> transports = {"shm", "tcp"};
  std::vector<std::string> sizes = {"4KiB", "1MiB", "16MiB"};
  std::vector<int> clients = {1, 2};
  int runs = 5;
  std::string memory = "512MiB";
  bool json = false;
};
absl::StatusOr<ExitCode> RunBenchTransport(const BenchTransportOptions& options, Streams& streams);

struct BenchStoreOptions {
  int threads = 0;  // 0: all cores
  int64_t elements = int64_t{1} << 24;
  int runs = 7;
  bool json = false;
};
absl::StatusOr<ExitCode> RunBenchStore(const BenchStoreOptions& options, Streams& streams);

}  // namespace shoal::cli
