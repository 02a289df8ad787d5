// How fast a transport is, and what fraction that is of the machine's own speed in the same run:
// gets against memcpy (shm) or a plain blocking socket loop (tcp) over the same bytes. `shoal bench
// transport` prints what this returns.
//
// Both ends run in this process, with a transport each, so the figures hold for one machine.
// Buffers are walked through from end to end, and the limit walks through the same ones, so both
// find the same caches. Runs of the limit and of the transport alternate, and medians are reported,
// as machines drift.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shoal::transport {

struct BenchOptions {
  std::vector<std::string> transports = {"shm", "tcp"};
  std::vector<int64_t> sizes = {64,      4096,     65536,
                                1 << 20, 16 << 20, 64 << 20};  // bytes of one operation
  std::vector<int> clients = {1, 2};
  bool gets = true;
  bool pushes = true;
  int runs = 5;  // the median counts
  absl::Duration run_time = absl::Milliseconds(100);
  // Split in halves, what is read from and what is read into; at least one operation a client fits,
  // or it is refused. Larger than the caches if figures are to hold for streaming.
  int64_t memory_bytes = int64_t{1} << 29;
  int io_threads = 1;  // tcp
  int socket_buffer_bytes =
      0;  // tcp, and the plain loop: 0 leaves it to each (see options.h; the kernel's for the loop)
};

struct BenchPoint {
  std::string transport;
  std::string operation;  // "get", or "push": a write with a doorbell, answered by an
                          // acknowledgement with a doorbell
  int64_t bytes = 0;      // of one operation
  int clients = 0;
  int64_t in_flight = 0;          // operations a client keeps posted
  double bytes_per_second = 0;    // all clients together
  double latency_seconds = 0;     // median, one client, one operation at a time
  double cpu_seconds_per_gb = 0;  // both ends, 1e9 bytes
  std::string limit;              // "memcpy" or "socket"
  double limit_bytes_per_second = 0;
  double limit_cpu_seconds_per_gb = 0;
  double limit_latency_seconds =
      0;  // of the same bytes, fetched by request and reply over a socket, or copied
  double ratio() const {
    return limit_bytes_per_second > 0 ? bytes_per_second / limit_bytes_per_second : 0;
  }
};

absl::StatusOr<std::vector<BenchPoint>> RunTransportBench(const BenchOptions& options);

// A table for people, and a JSON object a line.
std::string FormatBenchTable(const std::vector<BenchPoint>& points);
std::string FormatBenchJson(const std::vector<BenchPoint>& points);

}  // namespace shoal::transport
