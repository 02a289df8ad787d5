// `shoal bench transport|store`: how fast this machine does what a step is made of, each figure
// with what it is a fraction of in the same run. The measuring is done by the libraries themselves.
#pragma once

#include <string>
#include <vector>

#include "cli/run/command.h"

namespace shoal::cli {

struct BenchTransportOptions {
  std::vector<std::string> transports;  // empty: all that this machine has
  std::vector<std::string> sizes;       // empty: 64 B to 256 MiB
  std::vector<int> clients = {1, 4, 16};
  int runs = 3;
  double seconds = 0.05;  // of a run
  std::string memory = "1GiB";
  bool encrypt = false;
  bool json = false;
  std::string svg;  // a file for a picture; empty: none
};
// The table or the JSON lines come as they are measured; what is left out is told on `err`.
absl::StatusOr<ExitCode> RunBenchTransport(const BenchTransportOptions& options, Streams& streams);

struct BenchStoreOptions {
  int threads = 0;  // 0: all cores
  int64_t elements = int64_t{1} << 24;
  int runs = 7;
  bool json = false;
};
absl::StatusOr<ExitCode> RunBenchStore(const BenchStoreOptions& options, Streams& streams);

}  // namespace shoal::cli
