#include "core/transport/bench/bench.h"

#include <algorithm>
#include <iterator>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/bench/load.h"
#include "core/transport/bench/measure.h"
#include "core/transport/registry/registry.h"
#include "nlohmann/json.hpp"

namespace shoal::transport {
namespace {

absl::StatusOr<BenchPoint> Measure(const std::string& transport, BenchOperation operation,
                                   const LoadShape& shape, const BenchOptions& options) {
  BenchPoint point;
  point.transport = transport;
  point.operation = operation == BenchOperation::kGet ? "get" : "push";
  point.bytes = shape.bytes;
  point.clients = shape.clients;
  point.in_flight = std::min(OperationsInFlight(shape.bytes), shape.blocks());
  std::unique_ptr<Load> limit;
  if (transport == "shm") {
    point.limit = "memcpy";
    limit = MakeMemcpyLoad(shape);
  } else if (transport == "tcp") {
    point.limit = "socket";
    SHOAL_ASSIGN_OR_RETURN(limit, MakeSocketLoad(shape));
  }
  SHOAL_ASSIGN_OR_RETURN(auto load,
                         MakeTransportLoad(transport, operation, point.in_flight, shape, options));
  // Maps pages and warms up; not counted.
  SHOAL_RETURN_IF_ERROR(load->Run(options.run_time).status());
  if (limit != nullptr) {
    SHOAL_RETURN_IF_ERROR(limit->Run(options.run_time / 2).status());
  }
  Speed ours;
  Speed theirs;
  for (int run = 0; run < options.runs; ++run) {
    if (limit != nullptr) {
      SHOAL_RETURN_IF_ERROR(MeasureOnce(*limit, options.run_time, theirs));
    }
    SHOAL_RETURN_IF_ERROR(MeasureOnce(*load, options.run_time, ours));
  }
  SHOAL_ASSIGN_OR_RETURN(point.latency_seconds, MedianLatency(*load, options.run_time));
  if (limit != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(point.limit_latency_seconds, MedianLatency(*limit, options.run_time));
  }
  point.bytes_per_second = Median(ours.bytes_per_second);
  point.cpu_seconds_per_gb = Median(ours.cpu_seconds_per_gb);
  point.limit_bytes_per_second = Median(theirs.bytes_per_second);
  point.limit_cpu_seconds_per_gb = Median(theirs.cpu_seconds_per_gb);
  return point;
}

bool Fits(const BenchOptions& options, int64_t bytes, int clients) {
  // The limit has two memories and the transport has two.
  return bytes <= options.memory_bytes / 4 / clients;
}

absl::Status CheckOptions(const BenchOptions& options) {
  if (options.runs < 1 || options.run_time <= absl::ZeroDuration()) {
    return InvalidArgument("bench transport: runs and run time must be positive");
  }
  if (options.sizes.empty() || options.clients.empty()) {
    return InvalidArgument("bench transport: sizes and clients must not be empty");
  }
  const int fewest = std::ranges::min(options.clients);
  for (const int64_t bytes : options.sizes) {
    if (fewest < 1 || std::ranges::max(options.clients) > 64 || bytes < 1 ||
        !Fits(options, bytes, fewest)) {
      return InvalidArgument(
          "bench transport: {} clients with operations of {} do not fit into {} of memory", fewest,
          FormatBytes(bytes), FormatBytes(options.memory_bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status RunOver(const std::string& transport, const BenchOptions& options,
                     const std::function<void(const BenchPoint&)>& on_point, BenchReport& report) {
  for (const BenchOperation operation : {BenchOperation::kGet, BenchOperation::kPush}) {
    if (operation == BenchOperation::kGet ? !options.gets : !options.pushes) {
      continue;
    }
    for (const int clients : options.clients) {
      for (const int64_t bytes : options.sizes) {
        if (!Fits(options, bytes, clients)) {
          continue;
        }
        const LoadShape shape = {.bytes = bytes,
                                 .clients = clients,
                                 .memory_bytes = options.memory_bytes / 4,
                                 .socket_buffer_bytes = options.socket_buffer_bytes};
        SHOAL_ASSIGN_OR_RETURN(BenchPoint point, Measure(transport, operation, shape, options));
        if (on_point) {
          on_point(point);
        }
        report.points.push_back(std::move(point));
      }
    }
  }
  return absl::OkStatus();
}

void NoteWhatDoesNotFit(const BenchOptions& options, BenchReport& report) {
  for (const int64_t bytes : options.sizes) {
    std::vector<int> without;
    std::ranges::copy_if(options.clients, std::back_inserter(without),
                         [&](int clients) { return !Fits(options, bytes, clients); });
    if (!without.empty()) {
      report.left_out.push_back(fmt::format("{} with {} clients: does not fit into {} of memory",
                                            FormatBytes(bytes), fmt::join(without, ", "),
                                            FormatBytes(options.memory_bytes)));
    }
  }
}

}  // namespace

absl::StatusOr<BenchReport> RunTransportBench(
    const BenchOptions& options, const std::function<void(const BenchPoint&)>& on_point) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  BenchReport report;
  absl::Status missing;
  for (const std::string& transport :
       options.transports.empty() ? TransportNames() : options.transports) {
    if (const absl::Status made = CreateTransport(transport).status(); !made.ok()) {
      if (absl::IsInvalidArgument(made)) {
        return made;
      }
      missing.Update(made);
      report.left_out.push_back(fmt::format("{}: {}", transport, Message(made)));
      continue;
    }
    SHOAL_RETURN_IF_ERROR(RunOver(transport, options, on_point, report));
  }
  if (report.points.empty()) {
    return missing;
  }
  NoteWhatDoesNotFit(options, report);
  return report;
}

std::string FormatLatency(double seconds) {
  if (seconds < 1e-3) {
    return fmt::format("{:.1f} us", seconds * 1e6);
  }
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string FormatBenchHeader() {
  return fmt::format(
      "{:<5} {:<5} {:>9} {:>7} {:>8} {:>10} {:>9} | {:>7} {:>8} {:>10} {:>9} | {:>5}\n", "", "",
      "size", "clients", "GB/s", "latency", "CPU s/GB", "limit", "GB/s", "latency", "CPU s/GB",
      "ratio");
}

std::string FormatBenchRow(const BenchPoint& point) {
  std::string row = fmt::format("{:<5} {:<5} {:>9} {:>7} {:>8.3f} {:>10} {:>9.3f} |",
                                point.transport, point.operation, FormatBytes(point.bytes),
                                point.clients, point.bytes_per_second * 1e-9,
                                FormatLatency(point.latency_seconds), point.cpu_seconds_per_gb);
  if (point.limit.empty()) {
    return row + fmt::format(" {:>7} {:>8} {:>10} {:>9} | {:>5}\n", "-", "", "", "", "");
  }
  return row + fmt::format(" {:>7} {:>8.3f} {:>10} {:>9.3f} | {:>5.2f}\n", point.limit,
                           point.limit_bytes_per_second * 1e-9,
                           FormatLatency(point.limit_latency_seconds),
                           point.limit_cpu_seconds_per_gb, point.ratio());
}

std::string FormatBenchJson(const BenchPoint& point) {
  nlohmann::ordered_json json = {{"transport", point.transport},
                                 {"operation", point.operation},
                                 {"bytes", point.bytes},
                                 {"clients", point.clients},
                                 {"in_flight", point.in_flight},
                                 {"bytes_per_second", point.bytes_per_second},
                                 {"latency_seconds", point.latency_seconds},
                                 {"cpu_seconds_per_gb", point.cpu_seconds_per_gb}};
  if (!point.limit.empty()) {
    json["limit"] = point.limit;
    json["limit_bytes_per_second"] = point.limit_bytes_per_second;
    json["limit_cpu_seconds_per_gb"] = point.limit_cpu_seconds_per_gb;
    json["limit_latency_seconds"] = point.limit_latency_seconds;
    json["ratio"] = point.ratio();
  }
  return json.dump() + "\n";
}

}  // namespace shoal::transport
