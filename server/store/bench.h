// Measures how fast the store's kernels are, and what fraction that is of this machine's memory
// bandwidth in the same run: that of a streaming triad (a[i] = b[i] + s * c[i]) on the same
// threads. `shoal bench store` prints the report.
//
// Bytes are those that cross the memory bus: every array read, every array written, and for an
// array written without being read also the preceding fetch of its lines into the cache (so the
// triad counts 16, not STREAM's 12). `formula` says what that is for each kernel. Arrays are larger
// than the caches; runs of the triad and of each kernel alternate, as machines drift, and medians
// are reported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::server {

struct StoreBenchOptions {
  int threads = 0;                      // 0: the machine's cores
  int64_t elements = int64_t{1} << 24;  // of each array, rounded down to 16: 64 MiB in fp32
  int runs = 7;                         // the report gives the median
};

struct StoreBenchPoint {
  std::string kernel;   // "accumulate fp32", ...
  std::string formula;  // bytes per element: "gradient 4 + sum 4 read, sum 4 written"
  int64_t bytes_per_element = 0;
  double bytes_per_second = 0;
  double triad_bytes_per_second = 0;  // median of the triad runs between those of this kernel
  double ratio() const {
    return triad_bytes_per_second > 0 ? bytes_per_second / triad_bytes_per_second : 0;
  }
};

struct StoreBenchReport {
  int threads = 0;
  int64_t elements = 0;
  std::string kernel_width;
  std::vector<StoreBenchPoint> points;
};

// ResourceExhausted if the machine has no room for the arrays.
absl::StatusOr<StoreBenchReport> RunStoreBench(const StoreBenchOptions& options);

// A table for people, and one JSON object per line.
std::string FormatStoreBenchTable(const StoreBenchReport& report);
std::string FormatStoreBenchJson(const StoreBenchReport& report);

}  // namespace shoal::server
