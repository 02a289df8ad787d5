#include "cli/plan/servers_report.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "cli/terminal/terminal.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/job/job_units.h"
#include "core/model/shard_map.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/placement/placement.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

constexpr int kMostServers = 4096;

// 0: it is no number.
int ParseCount(std::string_view text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() ? count : 0;
}

ServersSize Describe(const plan::Job& job, const std::vector<plan::PartitionSpec>& partitions,
                     const plan::ShardMap& map, int servers) {
  ServersSize size{.servers = servers};
  for (int server = 0; server < servers; ++server) {
    size.most_partitions = std::max(size.most_partitions, plan::PartitionsOf(map, server).size());
  }
  for (const plan::ServerMemory& memory :
       plan::PlanServers(job, partitions, map, servers, job.cluster.workers)) {
    size.largest_bytes = std::max(size.largest_bytes, memory.total());
    size.largest_gpu_bytes = std::max(size.largest_gpu_bytes, memory.gpu.total());
    size.total_bytes += memory.total();
  }
  return size;
}

}  // namespace

absl::StatusOr<ServersRange> ParseServersRange(const std::string& text) {
  const size_t dots = text.find("..");
  ServersRange range;
  range.first = ParseCount(text.substr(0, dots));
  range.last = dots == std::string::npos ? range.first : ParseCount(text.substr(dots + 2));
  if (range.first < 1 || range.last < range.first || range.last > kMostServers) {
    return InvalidArgument(
        "--servers: is '{}', expected a range of numbers from 1 to {}, like 2..8", text,
        kMostServers);
  }
  return range;
}

std::vector<ServersSize> PlanServerSizes(const plan::Job& job,
                                         const std::vector<plan::PartitionSpec>& partitions,
                                         const ServersRange& range) {
  std::vector<ServersSize> sizes;
  const int64_t replicas = job.service.replicas;
  plan::ShardMap map = plan::WithBackups(partitions, plan::PlaceShards(partitions, range.first, 1),
                                         plan::FirstServers(range.first), replicas);
  for (int servers = range.first; servers <= range.last; ++servers) {
    const std::vector<int> all = plan::FirstServers(servers);
    const plan::ShardMap before = map;
    map = plan::PlanTarget(partitions, before, all, replicas);
    ServersSize& size = sizes.emplace_back(Describe(job, partitions, map, servers));
    size.moved_bytes = plan::MovedBytes(partitions, before, map);
    size.least_bytes = plan::LeastBytes(partitions, before, all);
  }
  return sizes;
}

std::optional<sim::LossCosts> PlanLossCosts(const JobReport& report) {
  const plan::ClusterSpec& cluster = report.simulation.options.cluster;
  if (cluster.losses.server_mtbf_hours == 0) {
    return std::nullopt;
  }
  const sim::SimulatorOptions& simulated = report.simulation.options;
  const plan::ServiceOptions& service = report.job.service;
  sim::ServedJob job = {.servers = cluster.servers > 0 ? cluster.servers : cluster.workers(),
                        .replicas = std::max<int64_t>(2, service.replicas),
                        .step_seconds = report.verdict.best.mean_seconds};
  const auto units = plan::JobUnits(simulated.shape.value_or(simulated.spec), report.job.train);
  for (const plan::PartitionSpec& partition :
       plan::BuildPartitions(units, service.partition_bytes)) {
    job.parameters += partition.trained();
    job.backup_bytes += plan::BackupBytes(partition, service);
  }
  return sim::CompareLossCosts(cluster, job);
}

void PrintLossCosts(const sim::LossCosts& costs, Streams& streams) {
  const std::string replicas = fmt::format("service.replicas: {}", costs.copies);
  streams.out << fmt::format(
      "A server is lost every {}: checkpoints (best every {}) cost {:.1f}% of the time, {} {:.1f}% "
      "and {} more of each server (reckoned). Choose {}\n",
      FormatSeconds(costs.seconds_between), FormatSeconds(costs.checkpoint_every_seconds),
      100 * costs.checkpoints, replicas, 100 * costs.replicas, FormatBytes(costs.replica_bytes),
      costs.replicas < costs.checkpoints ? replicas : "checkpoints");
}

void PrintJsonLossCosts(const sim::LossCosts& costs, Streams& streams) {
  PrintJson(streams.out, {{"event", "losses"},
                          {"seconds_between", costs.seconds_between},
                          {"checkpoints_share", costs.checkpoints},
                          {"checkpoint_every_seconds", costs.checkpoint_every_seconds},
                          {"replicas_share", costs.replicas},
                          {"replica_bytes", costs.replica_bytes}});
}

void PrintServerSizes(const std::vector<ServersSize>& sizes, Streams& streams) {
  const bool on_gpu = std::ranges::any_of(
      sizes, [](const ServersSize& size) { return size.largest_gpu_bytes > 0; });
  std::vector<Table::Column> columns = {{"servers", Table::Align::kRight},
                                        {"partitions, at most", Table::Align::kRight},
                                        {"largest server", Table::Align::kRight}};
  if (on_gpu) {
    columns.push_back({"its GPU", Table::Align::kRight});
  }
  columns.push_back({"all servers", Table::Align::kRight});
  columns.push_back({"state to move from one fewer", Table::Align::kRight});
  Table table(columns);
  for (const ServersSize& size : sizes) {
    std::vector<std::string> row = {std::to_string(size.servers),
                                    std::to_string(size.most_partitions),
                                    FormatBytes(size.largest_bytes)};
    if (on_gpu) {
      row.push_back(FormatBytes(size.largest_gpu_bytes));
    }
    row.push_back(FormatBytes(size.total_bytes));
    row.push_back(&size == &sizes.front() ? "-" : FormatBytes(size.moved_bytes));
    table.Add(row);
  }
  streams.out << "\n" << table.Render(streams.out_terminal);
}

void PrintJsonServerSizes(const std::vector<ServersSize>& sizes, Streams& streams) {
  for (const ServersSize& size : sizes) {
    PrintJson(streams.out, {{"event", "servers"},
                            {"servers", size.servers},
                            {"partitions_at_most", size.most_partitions},
                            {"largest_bytes", size.largest_bytes},
                            {"largest_gpu_bytes", size.largest_gpu_bytes},
                            {"total_bytes", size.total_bytes},
                            {"moved_bytes", size.moved_bytes},
                            {"least_bytes", size.least_bytes}});
  }
}

}  // namespace shoal::cli
