// Ours beside peers (peer.h): the same sizes on the same machine, runs in alternation, medians. A
// ratio is the median of the runs' own: a machine that is faster for a while is so for both.
// Gets are compared with what a peer has for them; where a peer covers pushes, pushes too.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/transport/bench/peer.h"

namespace shoal::transport {

struct CompareOptions {
  std::vector<std::string> transports;  // empty: all that a peer covers
  std::vector<int64_t> sizes = {64 << 10, 1 << 20, 64 << 20};
  int runs = 5;
  absl::Duration run_time = absl::Milliseconds(100);
  int64_t memory_bytes = int64_t{1} << 30;  // half of it walked through, from one half to the other
};

struct ComparedPoint {
  std::string transport;
  std::string operation;
  int64_t bytes = 0;
  int64_t in_flight = 0;  // of ours
  PeerFigures ours;
  std::string peer;
  PeerFigures theirs;

  double bandwidth_ratio = 0;  // above 1: ours is faster
  double latency_ratio = 0;    // below 1: ours is faster
};

struct ComparisonReport {
  std::vector<ComparedPoint> points;  // one for each size and peer
  std::vector<std::string> left_out;  // transports that this machine lacks, and why
};

// InvalidArgument if no peer covers any of the transports.
absl::StatusOr<ComparisonReport> Compare(
    const CompareOptions& options, const std::vector<std::unique_ptr<Peer>>& peers,
    const std::function<void(const ComparedPoint&)>& on_point = {});

std::string FormatComparisonHeader();
std::string FormatComparisonRow(const ComparedPoint& point);
std::string FormatComparisonJson(const ComparedPoint& point);

}  // namespace shoal::transport
