// What a job needs with more or fewer servers, what scaling from size to size moves (`shoal plan
// --servers`), and what losses of servers cost it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan/job_report.h"
#include "cli/run/command.h"
#include "core/job/job.h"
#include "core/model/partition.h"
#include "core/sim/server_losses.h"

namespace shoal::cli {

// Numbers of servers, both ends included.
struct ServersRange {
  int first = 0;
  int last = 0;
};
// Of "2..8", or "4". InvalidArgument for anything else.
absl::StatusOr<ServersRange> ParseServersRange(const std::string& text);

// With that many servers.
struct ServersSize {
  int servers = 0;
  size_t most_partitions = 0;     // of a server
  int64_t largest_bytes = 0;      // memory of the host of the server that takes most
  int64_t largest_gpu_bytes = 0;  // of its GPU; 0: none
  int64_t total_bytes = 0;        // of all servers' hosts
  // To get here from the size before; of the first, 0.
  int64_t moved_bytes = 0;
  int64_t least_bytes = 0;
};

// `job` must have as many workers as it will.
std::vector<ServersSize> PlanServerSizes(const plan::Job& job,
                                         const std::vector<plan::PartitionSpec>& partitions,
                                         const ServersRange& range);

// nullopt: the cluster file says nothing of losses.
std::optional<sim::LossCosts> PlanLossCosts(const JobReport& report);

void PrintLossCosts(const sim::LossCosts& costs, Streams& streams);
void PrintJsonLossCosts(const sim::LossCosts& costs, Streams& streams);
void PrintServerSizes(const std::vector<ServersSize>& sizes, Streams& streams);
void PrintJsonServerSizes(const std::vector<ServersSize>& sizes, Streams& streams);

}  // namespace shoal::cli
