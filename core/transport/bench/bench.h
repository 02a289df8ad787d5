// How fast a transport is, and what fraction that is of the machine's own speed in the same run:
// memcpy (shm) or a plain blocking socket loop (tcp) over the same bytes. The limit of verbs is
// what perftest reaches: scripts/compare-transports.sh. `shoal bench transport` prints what this
// returns.
//
// Both ends run in this process, with a transport each, so the figures hold for one machine.
// Buffers are walked through from end to end, and the limit walks through the same ones, so both
// find the same caches. Runs of the limit and of the transport alternate, and medians are reported,
// as machines drift.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shoal::transport {

struct BenchOptions {
  std::vector<std::string> transports;  // empty: all
  std::vector<int64_t> sizes = {64,      4096,     65536,
                                1 << 20, 16 << 20, 256 << 20};  // bytes of one operation
  // At once. What does not fit into the memory together with a size is left out, if the size fits
  // with fewer.
  std::vector<int> clients = {1, 4, 16};
  bool gets = true;
  bool pushes = true;
  int runs = 3;  // the median counts
  absl::Duration run_time = absl::Milliseconds(50);
  // Split in halves, what is read from and what is read into, of which the limit has its own.
  // Larger than the caches if figures are to hold for streaming.
  int64_t memory_bytes = int64_t{1} << 30;
  int io_threads = 1;    // tcp
  bool encrypt = false;  // tcp
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
  std::string limit;              // "memcpy", "socket"; "" for none
  double limit_bytes_per_second = 0;
  double limit_cpu_seconds_per_gb = 0;
  double limit_latency_seconds =
      0;  // of the same bytes, fetched by request and reply over a socket, or copied
  double ratio() const {
    return limit_bytes_per_second > 0 ? bytes_per_second / limit_bytes_per_second : 0;
  }
};

struct BenchReport {
  std::vector<BenchPoint> points;
  std::vector<std::string> left_out;  // what was not measured, and why: a line each
};

// Tells `on_point` of each point as it is there. A transport that this machine does not have is
// left out, unless there is no other: its error is returned then.
absl::StatusOr<BenchReport> RunTransportBench(
    const BenchOptions& options, const std::function<void(const BenchPoint&)>& on_point = {});

// A table for people, and a JSON object; a line each.
std::string FormatBenchHeader();
std::string FormatBenchRow(const BenchPoint& point);
std::string FormatBenchJson(const BenchPoint& point);

// "12.3 us"
std::string FormatLatency(double seconds);

}  // namespace shoal::transport
