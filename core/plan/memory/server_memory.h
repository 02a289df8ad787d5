// How much memory each server of a job takes on its host and its GPU, and what clients are granted
// of the latter. Pure formulas over the partitions that it holds; memory_plan.h covers the rest of
// the job. What servers allocate and grant follows from here too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/job/job.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/plan/memory/gpu_turn.h"

namespace shoal::plan {

// What a server takes besides its arrays, measured: 17 MiB of programs and libraries, 3 MiB for
// threads, heap and control connections (a client adds about 30 KiB).
// tests/integration/memory_test.cc compares all of ServerMemory with running servers.
inline constexpr int64_t kServerProcessBytes = int64_t{20} << 20;
// The streams over which a server with service.memory cuda spreads its work, and the elements that
// each loads and reads at a time.
inline constexpr int kServerGpuStreams = 4;
inline constexpr int64_t kServerStagingElements = int64_t{1} << 20;
// At each end, where one server reads state of another (server/copy/state_link.h).
inline constexpr int64_t kStateLinkBytes = int64_t{4} << 20;

// What a server grants in its GPU to workers on its host, whose copies then go from GPU to GPU.
// They reach everything else on the host, and so do all other workers.
struct ReachedInGpu {
  bool weights = false;
  bool slots = false;   // payloads of pushes; headers are on the host
  bool by_all = false;  // no worker is on another host
};
// Grants, with service.memory cuda and shm and workers that compute on GPUs, what needs no
// conversion on the way. Servers grant by this too.
ReachedInGpu PlanReachedInGpu(const Job& job);

// Rounds up to whole 2 MiB, which is what memory shared with other processes of the host takes of a
// GPU (the driver's pages, which no two allocations share).
int64_t SharedGpuBytes(int64_t bytes);

// Memory of the GPU, with service.memory cuda.
struct ServerGpuMemory {
  int64_t weights = 0;    // if clients reach them there: same as ServerMemory's
  int64_t master = 0;     // same as ServerMemory's
  int64_t moments = 0;    // same as above
  int64_t gradients = 0;  // same as above
  // 4 B for each element of the largest partition per stream, twice in exact mode; 16 B for every
  // 8192 elements of a partition, and in exact mode 8 B for every 1024.
  int64_t workspace = 0;
  int64_t slots = 0;      // if clients reach them there: each in whole 2 MiB
  int64_t promotion = 0;  // as ServerMemory's

  int64_t total() const {
    return weights + master + moments + gradients + workspace + slots + promotion;
  }
};

// A server's memory, over the partitions that it holds, with n the elements of those that train;
// "pages" means rounded up to 4096 bytes each.
struct ServerMemory {
  // Both versions in the wire type, one of what is frozen, pages, and 64 B of header for each
  // partition; with service.read_replicas of those that it backs up too. If clients reach them in a
  // GPU, allocated when a client comes that does not.
  int64_t weights = 0;
  int64_t master = 0;     // 4 n, pages
  int64_t moments = 0;    // of AdamW 2 x 4 n, pages
  int64_t gradients = 0;  // the accumulator: 4 n, or 8 n in exact mode; pages
  int64_t backups = 0;    // of others' partitions: PartitionSpec::backup_bytes
  // What it takes more, until the next step begins, where the server is lost of whose partitions it
  // backs most up: it becomes their primary.
  int64_t promotion = 0;
  // clients x push_slots x pages(largest of the job x gradient type + 128 B of header); only a page
  // each if the rest lies in a GPU. If some clients may be on another host and others on this one,
  // both places count all clients: each figure is an upper bound.
  int64_t slots = 0;
  // Of data on its way to files: moments of a partition that are kept packed; to and from servers
  // that have copies of the same partitions: kStateLinkBytes each way. With service.memory cuda,
  // master, moments and gradients are 0, and this is staging of each stream between the GPU and
  // files, and a partition that is being written.
  int64_t copies = 0;
  int64_t process = kServerProcessBytes;
  ServerGpuMemory gpu;

  // Of the host.
  int64_t total() const {
    return weights + master + moments + gradients + backups + promotion + slots + copies + process;
  }
};

// Without slots. `shared_wire`: the wire type if weights are reached there.
ServerGpuMemory PlanServerGpuMemory(std::span<const PartitionSpec> held, Accumulate accumulate,
                                    std::optional<DType> shared_wire = std::nullopt);

// Returns the size of a slot at every server of a job: a push of the largest of its partitions,
// including the header.
int64_t PushSlotBytes(std::span<const PartitionSpec> partitions, DType gradient_type);

// What a partition takes of a server that backs it up, with its weights where they are read there.
int64_t BackupBytes(const PartitionSpec& partition, const ServiceOptions& service);

// Of one without backups.
ServerMemory PlanServerMemory(std::span<const PartitionSpec> held, int64_t slot_bytes,
                              const ServiceOptions& service, int64_t clients,
                              const ReachedInGpu& reached = {});

// Of each of a job's servers, by a map of the job's partitions.
std::vector<ServerMemory> PlanServers(const Job& job, const std::vector<PartitionSpec>& partitions,
                                      const ShardMap& map, int servers, int64_t clients);

// What servers keep on one GPU.
struct ServersOnGpu {
  int64_t taken = 0;  // before workers join
  int64_t slots = 0;  // of all workers that reach them there, allocated as they connect
};

// Returns what local servers take of that GPU, including slots.
int64_t ServersBytesOn(const GpuTurn& gpu, std::span<const ServerMemory> servers);

}  // namespace shoal::plan
