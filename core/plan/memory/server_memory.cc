#include "core/plan/memory/server_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/bytes.h"

namespace shoal::plan {
namespace {

constexpr int64_t kServerPage =
    4096;  // alignment of what the transport exposes and of server state
constexpr int64_t kPartitionHeader = 64;  // transport::PartitionHeader
constexpr int64_t kPushHeader = 128;      // transport::PushHeader

int64_t ServerPages(int64_t bytes) { return RoundUp(bytes, kServerPage); }

// Returns the bytes of one array of a partition: whole pages, plus the step by which the store
// staggers its arrays, so that those traversed together do not map to the same cache sets.
int64_t StateArray(int64_t count, int64_t element) {
  constexpr int64_t kStagger = 256;
  return count == 0 ? 0 : ServerPages(count * element) + kStagger;
}

// Returns the size of a partition's buffers of weights.
int64_t BufferBytes(const PartitionSpec& partition, DType wire) {
  return (partition.frozen ? 1 : 2) * ServerPages(partition.wire_bytes(wire));
}

// Returns the size of the region of weights that clients read.
int64_t WeightsBytes(std::span<const PartitionSpec> held, DType wire) {
  int64_t bytes =
      ServerPages(static_cast<int64_t>(std::max<size_t>(1, held.size())) * kPartitionHeader);
  for (const PartitionSpec& partition : held) {
    bytes += BufferBytes(partition, wire);
  }
  return bytes;
}

}  // namespace

int64_t PushSlotBytes(std::span<const PartitionSpec> partitions, DType gradient_type) {
  return ServerPages(kPushHeader + LargestCount(OfKind(partitions, false)) * SizeOf(gradient_type));
}

int64_t BackupBytes(const PartitionSpec& partition, const ServiceOptions& service) {
  return partition.backup_bytes() +
         (service.read_replicas ? BufferBytes(partition, service.wire_type) : 0);
}

ReachedInGpu PlanReachedInGpu(const Job& job) {
  const ServiceOptions& service = job.service;
  if (service.memory != PartitionMemory::kCuda || job.train.device != DeviceKind::kCuda ||
      std::ranges::find(service.transports, "shm") == service.transports.end()) {
    return {};
  }
  return {.weights = service.wire_type == ComputeDType(job) &&
                     job.lora.quantize == Quantize::kNone && service.frozen == Frozen::kServers,
          .slots = service.gradient_type == DType::kF32,
          .by_all = job.cluster.local};
}

int64_t SharedGpuBytes(int64_t bytes) {
  constexpr int64_t kDriverPage = int64_t{2} << 20;
  return RoundUp(bytes, kDriverPage);
}

ServerGpuMemory PlanServerGpuMemory(std::span<const PartitionSpec> held, Accumulate accumulate,
                                    std::optional<DType> shared_wire) {
  constexpr int64_t kStatisticsChunk = 8192;
  constexpr int64_t kExactBlock = 1024;
  const bool exact = accumulate == Accumulate::kExact;
  ServerGpuMemory memory;
  memory.weights = shared_wire.has_value() ? SharedGpuBytes(WeightsBytes(held, *shared_wire)) : 0;
  int64_t largest = 0;
  for (const PartitionSpec& partition : held) {
    const int64_t count = partition.trained();
    memory.master += StateArray(count, 4);
    memory.moments +=
        partition.moment_arrays() * StateArray(partition.moments.ArrayBytes(count), 1);
    memory.gradients += StateArray(count, exact ? 8 : 4);
    memory.workspace += RoundUp(count, kStatisticsChunk) / kStatisticsChunk * 16 +
                        (exact ? RoundUp(count, kExactBlock) / kExactBlock * 8 : 0);
    largest = std::max(largest, count);
  }
  memory.workspace += kServerGpuStreams * (exact ? 8 : 4) * largest;
  return memory;
}

ServerMemory PlanServerMemory(std::span<const PartitionSpec> held, int64_t slot_bytes,
                              const ServiceOptions& service, int64_t clients,
                              const ReachedInGpu& reached) {
  ServerMemory memory;
  memory.weights = WeightsBytes(held, service.wire_type);
  const ServerGpuMemory state =
      PlanServerGpuMemory(held, service.accumulate,
                          reached.weights ? std::optional<DType>(service.wire_type) : std::nullopt);
  const int64_t largest = LargestCount(OfKind(held, /*frozen=*/false));
  const int64_t frozen = LargestCount(OfKind(held, /*frozen=*/true));
  memory.copies = 4 * frozen;
  const auto packed = std::ranges::find_if(held, [](const PartitionSpec& partition) {
    return !partition.frozen && partition.moments.packed;
  });
  if (packed != held.end()) {
    memory.copies += 4 * largest * packed->moments.arrays;  // as a checkpoint reads them
  }
  if (service.memory == PartitionMemory::kCuda) {
    const int64_t staged = std::min(largest, kServerStagingElements);
    memory.gpu = state;
    memory.copies = 4 * ((reached.weights ? 2 : 1) * kServerGpuStreams * staged +
                         std::max(largest, frozen) + 2 * largest);
  } else {
    memory.master = state.master;
    memory.moments = state.moments;
    memory.gradients = state.gradients;
  }
  const int64_t slots = service.push_slots * slot_bytes;
  memory.slots =
      clients * (reached.slots && reached.by_all ? service.push_slots * kServerPage : slots);
  memory.gpu.slots = reached.slots ? clients * SharedGpuBytes(slots) : 0;
  return memory;
}

std::vector<ServerMemory> PlanServers(const Job& job, const std::vector<PartitionSpec>& partitions,
                                      const ShardMap& map, int servers, int64_t clients) {
  const int64_t slot_bytes = PushSlotBytes(partitions, job.service.gradient_type);
  const ReachedInGpu reached = PlanReachedInGpu(job);
  std::vector<ServerMemory> planned;
  for (const auto& held : PartitionsByServer(partitions, map, servers)) {
    const auto server = static_cast<int>(std::ssize(planned));
    ServerMemory& memory =
        planned.emplace_back(PlanServerMemory(held, slot_bytes, job.service, clients, reached));
    std::map<int, std::vector<PartitionSpec>> backed;  // by primary
    std::vector<PartitionSpec> backups;
    for (const int id : BackupsOf(map, server)) {
      backups.push_back(partitions[static_cast<size_t>(id)]);
      memory.backups += backups.back().backup_bytes();
      backed[map.primary(id)].push_back(backups.back());
    }
    if (job.service.read_replicas) {
      memory.weights += WeightsBytes(backups, job.service.wire_type);
    }
    std::set<int> followers;  // servers that back its partitions up
    for (const PartitionSpec& partition : held) {
      const Holders& holders = map.servers[static_cast<size_t>(partition.id)];
      followers.insert(holders.begin() + 1, holders.end());
    }
    memory.copies += (std::ssize(backed) + std::ssize(followers)) * kStateLinkBytes;
    for (const auto& [primary, promoted] : backed) {
      const ServerMemory more = PlanServerMemory(promoted, /*slot_bytes=*/0, job.service, 0);
      memory.promotion = std::max(memory.promotion, more.total() - more.process);
      memory.gpu.promotion = std::max(memory.gpu.promotion, more.gpu.total());
    }
  }
  return planned;
}

int64_t ServersBytesOn(const GpuTurn& gpu, std::span<const ServerMemory> servers) {
  int64_t bytes = 0;
  for (size_t server = 0; server < servers.size(); ++server) {
    bytes += gpu.Has(server) ? servers[server].gpu.total() : 0;
  }
  return bytes;
}

}  // namespace shoal::plan
