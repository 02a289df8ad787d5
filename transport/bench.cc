#include "transport/bench.h"

#include <algorithm>

#include "common/bytes.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "transport/bench_load.h"
#include "transport/bench_measure.h"

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
  point.limit = transport == "shm" ? "memcpy" : "socket";
  std::unique_ptr<Load> limit;
  if (point.limit == "memcpy") {
    limit = MakeMemcpyLoad(shape);
  } else {
    SHOAL_ASSIGN_OR_RETURN(limit, MakeSocketLoad(shape));
  }
  SHOAL_ASSIGN_OR_RETURN(auto load,
                         MakeTransportLoad(transport, operation, point.in_flight, shape, options));
  // Maps pages and warms up; not counted.
  SHOAL_RETURN_IF_ERROR(load->Run(options.run_time).status());
  SHOAL_RETURN_IF_ERROR(limit->Run(options.run_time / 2).status());
  Speed ours;
  Speed theirs;
  for (int run = 0; run < options.runs; ++run) {
    SHOAL_RETURN_IF_ERROR(MeasureOnce(*limit, options.run_time, theirs));
    SHOAL_RETURN_IF_ERROR(MeasureOnce(*load, options.run_time, ours));
  }
  SHOAL_ASSIGN_OR_RETURN(point.latency_seconds, MedianLatency(*load, options.run_time));
  SHOAL_ASSIGN_OR_RETURN(point.limit_latency_seconds, MedianLatency(*limit, options.run_time));
  point.bytes_per_second = Median(ours.bytes_per_second);
  point.cpu_seconds_per_gb = Median(ours.cpu_seconds_per_gb);
  point.limit_bytes_per_second = Median(theirs.bytes_per_second);
  point.limit_cpu_seconds_per_gb = Median(theirs.cpu_seconds_per_gb);
  return point;
}

std::string FormatTime(double seconds) {
  if (seconds < 1e-3) {
    return fmt::format("{:.1f} us", seconds * 1e6);
  }
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

absl::Status CheckOptions(const BenchOptions& options) {
  if (options.runs < 1 || options.run_time <= absl::ZeroDuration()) {
    return InvalidArgument("bench transport: runs and run time must be positive");
  }
  for (const int clients : options.clients) {
    for (const int64_t bytes : options.sizes) {
      if (clients < 1 || clients > 64 || bytes < 1 || bytes > options.memory_bytes / 4 / clients) {
        return InvalidArgument(
            "bench transport: {} clients with operations of {} do not fit into {} of memory",
            clients, FormatBytes(bytes), FormatBytes(options.memory_bytes));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BenchPoint>> RunTransportBench(const BenchOptions& options) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<BenchPoint> points;
  for (const std::string& transport : options.transports) {
    for (const BenchOperation operation : {BenchOperation::kGet, BenchOperation::kPush}) {
      if (operation == BenchOperation::kGet ? !options.gets : !options.pushes) {
        continue;
      }
      for (const int clients : options.clients) {
        for (const int64_t bytes : options.sizes) {
          // The limit has two memories and the transport has two.
          const LoadShape shape = {.bytes = bytes,
                                   .clients = clients,
                                   .memory_bytes = options.memory_bytes / 4,
                                   .socket_buffer_bytes = options.socket_buffer_bytes};
          SHOAL_ASSIGN_OR_RETURN(BenchPoint point, Measure(transport, operation, shape, options));
          points.push_back(std::move(point));
        }
      }
    }
  }
  return points;
}

std::string FormatBenchTable(const std::vector<BenchPoint>& points) {
  std::string table =
      fmt::format("{:<5} {:<5} {:>9} {:>7} {:>8} {:>10} {:>9} | {:>7} {:>8} {:>10} {:>9} | {:>5}\n",
                  "", "", "size", "clients", "GB/s", "latency", "CPU s/GB", "limit", "GB/s",
                  "latency", "CPU s/GB", "ratio");
  for (const BenchPoint& point : points) {
    table += fmt::format(
        "{:<5} {:<5} {:>9} {:>7} {:>8.3f} {:>10} {:>9.3f} | {:>7} {:>8.3f} {:>10} {:>9.3f} | "
        "{:>5.2f}\n",
        point.transport, point.operation, FormatBytes(point.bytes), point.clients,
        point.bytes_per_second * 1e-9, FormatTime(point.latency_seconds), point.cpu_seconds_per_gb,
        point.limit, point.limit_bytes_per_second * 1e-9, FormatTime(point.limit_latency_seconds),
        point.limit_cpu_seconds_per_gb, point.ratio());
  }
  return table;
}

std::string FormatBenchJson(const std::vector<BenchPoint>& points) {
  std::string lines;
  for (const BenchPoint& point : points) {
    const nlohmann::ordered_json json = {
        {"transport", point.transport},
        {"operation", point.operation},
        {"bytes", point.bytes},
        {"clients", point.clients},
        {"in_flight", point.in_flight},
        {"bytes_per_second", point.bytes_per_second},
        {"latency_seconds", point.latency_seconds},
        {"cpu_seconds_per_gb", point.cpu_seconds_per_gb},
        {"limit", point.limit},
        {"limit_bytes_per_second", point.limit_bytes_per_second},
        {"limit_cpu_seconds_per_gb", point.limit_cpu_seconds_per_gb},
        {"limit_latency_seconds", point.limit_latency_seconds},
        {"ratio", point.ratio()}};
    lines += json.dump() + "\n";
  }
  return lines;
}

}  // namespace shoal::transport
