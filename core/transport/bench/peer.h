// Other systems that move bytes, measured on the same machine in the same run as ours: perftest
// (for verbs), UCX and Open MPI (for shm and tcp). Each is a program of its own that runs for a
// moment at a time, so that its runs and ours alternate. Where a peer has several ways to get at
// data, all are run and the best counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/transport/bench/load.h"

namespace shoal::transport {

struct PeerLoad {
  std::string transport;  // ours, whose counterpart is asked for
  BenchOperation operation = BenchOperation::kGet;
  int64_t bytes = 0;
  int64_t in_flight = 1;     // of ours
  int64_t memory_bytes = 0;  // walked through on each side
  absl::Duration run_time = absl::Milliseconds(100);
  double expected_bytes_per_second = 0;  // of ours: how many operations fill the run time
};

struct PeerFigures {
  double bytes_per_second = 0;
  double latency_seconds = 0;  // one operation at a time, from start to end
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string_view name() const = 0;
  virtual bool Covers(std::string_view transport) const = 0;
  virtual bool Covers(BenchOperation operation) const = 0;
  virtual absl::StatusOr<PeerFigures> Measure(const PeerLoad& load) = 0;
};

struct PeerOptions {
  std::string program_folder;  // of shoal's own programs
};

std::vector<std::string> PeerNames();

// NotFound, with what to install, where its programs are missing; InvalidArgument for a name that
// is none of PeerNames.
absl::StatusOr<std::unique_ptr<Peer>> MakePeer(std::string_view name, const PeerOptions& options);

}  // namespace shoal::transport
