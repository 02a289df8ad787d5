#include "core/transport/bench/compare.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/bench/bench.h"
#include "core/transport/bench/measure.h"
#include "core/transport/registry/registry.h"
#include "nlohmann/json.hpp"

namespace shoal::transport {
namespace {

struct Samples {
  std::vector<double> bytes_per_second;
  std::vector<double> latency_seconds;

  PeerFigures Medians() const { return {Median(bytes_per_second), Median(latency_seconds)}; }
};

// Of the first to the second, run by run.
double MedianRatio(std::span<const double> ours, std::span<const double> theirs) {
  std::vector<double> ratios;
  std::ranges::transform(ours, theirs, std::back_inserter(ratios), std::divides<>());
  return Median(std::move(ratios));
}

absl::Status MeasureOurs(Load& load, const CompareOptions& options, Samples& samples) {
  Speed speed;
  SHOAL_RETURN_IF_ERROR(MeasureOnce(load, options.run_time, speed));
  samples.bytes_per_second.push_back(speed.bytes_per_second[0]);
  SHOAL_ASSIGN_OR_RETURN(const double latency, MedianLatency(load, options.run_time));
  samples.latency_seconds.push_back(latency);
  return absl::OkStatus();
}

// One size over one transport, beside `peers`.
absl::Status ComparePoint(const CompareOptions& options, const std::vector<Peer*>& peers,
                          PeerLoad peer_load,
                          const std::function<void(const ComparedPoint&)>& on_point,
                          ComparisonReport& report) {
  const LoadShape shape = {.bytes = peer_load.bytes, .memory_bytes = options.memory_bytes / 4};
  peer_load.in_flight = std::min(OperationsInFlight(shape.bytes), shape.blocks());
  peer_load.memory_bytes = shape.memory_bytes;
  peer_load.run_time = options.run_time;
  SHOAL_ASSIGN_OR_RETURN(auto load, MakeTransportLoad(peer_load.transport, peer_load.operation,
                                                      peer_load.in_flight, shape, {}));
  SHOAL_RETURN_IF_ERROR(load->Run(options.run_time).status());  // maps pages; not counted
  Samples ours;
  std::vector<Samples> theirs(peers.size());
  for (int run = 0; run < options.runs; ++run) {
    SHOAL_RETURN_IF_ERROR(MeasureOurs(*load, options, ours));
    peer_load.expected_bytes_per_second = ours.bytes_per_second.back();
    for (size_t i = 0; i < peers.size(); ++i) {
      SHOAL_ASSIGN_OR_RETURN(const PeerFigures figures, peers[i]->Measure(peer_load));
      theirs[i].bytes_per_second.push_back(figures.bytes_per_second);
      theirs[i].latency_seconds.push_back(figures.latency_seconds);
    }
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    report.points.push_back(
        {.transport = peer_load.transport,
         .operation = peer_load.operation == BenchOperation::kGet ? "get" : "push",
         .bytes = peer_load.bytes,
         .in_flight = peer_load.in_flight,
         .ours = ours.Medians(),
         .peer = std::string(peers[i]->name()),
         .theirs = theirs[i].Medians(),
         .bandwidth_ratio = MedianRatio(ours.bytes_per_second, theirs[i].bytes_per_second),
         .latency_ratio = MedianRatio(ours.latency_seconds, theirs[i].latency_seconds)});
    if (on_point) {
      on_point(report.points.back());
    }
  }
  return absl::OkStatus();
}

std::vector<Peer*> Covering(const std::vector<std::unique_ptr<Peer>>& peers,
                            std::string_view transport, BenchOperation operation) {
  std::vector<Peer*> covering;
  for (const auto& peer : peers) {
    if (peer->Covers(transport) && peer->Covers(operation)) {
      covering.push_back(peer.get());
    }
  }
  return covering;
}

absl::Status CompareOver(const std::string& transport, const CompareOptions& options,
                         const std::vector<std::unique_ptr<Peer>>& peers,
                         const std::function<void(const ComparedPoint&)>& on_point,
                         ComparisonReport& report) {
  for (const BenchOperation operation : {BenchOperation::kGet, BenchOperation::kPush}) {
    const std::vector<Peer*> covering = Covering(peers, transport, operation);
    if (covering.empty()) {
      continue;
    }
    for (const int64_t bytes : options.sizes) {
      SHOAL_RETURN_IF_ERROR(ComparePoint(
          options, covering, {.transport = transport, .operation = operation, .bytes = bytes},
          on_point, report));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const CompareOptions& options) {
  if (options.runs < 1 || options.run_time <= absl::ZeroDuration()) {
    return InvalidArgument("bench transport: runs and run time must be positive");
  }
  for (const int64_t bytes : options.sizes) {
    if (bytes < 1 || bytes > options.memory_bytes / 4) {
      return InvalidArgument("bench transport: operations of {} do not fit into {} of memory",
                             FormatBytes(bytes), FormatBytes(options.memory_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ComparisonReport> Compare(
    const CompareOptions& options, const std::vector<std::unique_ptr<Peer>>& peers,
    const std::function<void(const ComparedPoint&)>& on_point) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  ComparisonReport report;
  absl::Status missing =
      InvalidArgument("bench transport: none of the peers is there for these transports");
  for (const std::string& transport :
       options.transports.empty() ? TransportNames() : options.transports) {
    const bool covered =
        std::ranges::any_of(peers, [&](const auto& peer) { return peer->Covers(transport); });
    if (!covered) {
      continue;
    }
    if (const absl::Status made = CreateTransport(transport).status(); !made.ok()) {
      missing = made;
      report.left_out.push_back(fmt::format("{}: {}", transport, Message(made)));
      continue;
    }
    SHOAL_RETURN_IF_ERROR(CompareOver(transport, options, peers, on_point, report));
  }
  if (report.points.empty()) {
    return missing;
  }
  return report;
}

std::string FormatComparisonHeader() {
  return fmt::format("{:<5} {:<4} {:>9} {:>9} | {:>8} {:>10} | {:<8} {:>8} {:>10} | {:>9} {:>7}\n",
                     "", "", "size", "in flight", "GB/s", "latency", "", "GB/s", "latency",
                     "bandwidth", "latency");
}

std::string FormatComparisonRow(const ComparedPoint& point) {
  return fmt::format(
      "{:<5} {:<4} {:>9} {:>9} | {:>8.3f} {:>10} | {:<8} {:>8.3f} {:>10} | {:>9.2f} {:>7.2f}\n",
      point.transport, point.operation, FormatBytes(point.bytes), point.in_flight,
      point.ours.bytes_per_second * 1e-9, FormatLatency(point.ours.latency_seconds), point.peer,
      point.theirs.bytes_per_second * 1e-9, FormatLatency(point.theirs.latency_seconds),
      point.bandwidth_ratio, point.latency_ratio);
}

std::string FormatComparisonJson(const ComparedPoint& point) {
  const nlohmann::ordered_json json = {{"transport", point.transport},
                                       {"operation", point.operation},
                                       {"bytes", point.bytes},
                                       {"in_flight", point.in_flight},
                                       {"bytes_per_second", point.ours.bytes_per_second},
                                       {"latency_seconds", point.ours.latency_seconds},
                                       {"peer", point.peer},
                                       {"peer_bytes_per_second", point.theirs.bytes_per_second},
                                       {"peer_latency_seconds", point.theirs.latency_seconds},
                                       {"bandwidth_ratio", point.bandwidth_ratio},
                                       {"latency_ratio", point.latency_ratio}};
  return json.dump() + "\n";
}

}  // namespace shoal::transport
