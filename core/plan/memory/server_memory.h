// How much memory each server of a job takes, on its host and of its GPU, and what clients are
// granted of the latter. Pure formulas over the partitions that it holds; memory_plan.h has the
// rest of the job. What servers allocate and grant follows from here too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/base/dtype.h"
#include "core/job/job.h"
#include "core/model/partition.h"
#include "core/plan/memory/gpu_turn.h"

namespace shoal::plan {

// What a server takes besides its arrays, measured: 17 MiB of programs and libraries, 3 MiB for
// threads, heap and control connections (a client adds about 30 KiB).
// tests/integration/memory_test.cc holds the whole of ServerMemory against running servers.
inline constexpr int64_t kServerProcessBytes = int64_t{20} << 20;
// Streams over which a server with service.memory cuda spreads its work, and elements that each
// loads and reads at a time.
inline constexpr int kServerGpuStreams = 4;
inline constexpr int64_t kServerStagingElements = int64_t{1} << 20;

// Over the partitions that a server holds, with n their elements; "pages" means rounded up to 4096
// bytes each:

// What a server grants in its GPU to workers on its host, whose copies then go from GPU to GPU. The
// rest, and all others, they reach on the host.
struct ReachedInGpu {
  bool weights = false;
  bool slots = false;   // what is pushed; headers are on the host
  bool by_all = false;  // no worker is on another host
};
// With service.memory cuda and shm, where workers compute on GPUs: what needs no conversion on the
// way. What servers grant follows from this too.
ReachedInGpu PlanReachedInGpu(const Job& job);

// What is shared with other processes of the host takes whole 2 MiB of a GPU (the driver's pages,
// which no two of them share).
int64_t SharedGpuBytes(int64_t bytes);

// With service.memory cuda, in the GPU's memory.
struct ServerGpuMemory {
  int64_t weights = 0;    // where clients reach them there: as ServerMemory's
  int64_t master = 0;     // as ServerMemory's
  int64_t moments = 0;    // likewise
  int64_t gradients = 0;  // likewise
  // 4 B elements of the largest partition for each stream, twice in exact mode; 16 B for every 8192
  // elements of a partition, and in exact mode 8 B for every 1024.
  int64_t workspace = 0;
  int64_t slots = 0;  // where clients reach them there: of each in whole 2 MiB

  int64_t total() const { return weights + master + moments + gradients + workspace + slots; }
};

struct ServerMemory {
  // Both versions in the wire type, pages, and 64 B of header for each partition. Where clients
  // reach them in a GPU they are taken when one comes that does not.
  int64_t weights = 0;
  int64_t master = 0;     // 4 n, pages
  int64_t moments = 0;    // 2 x 4 n, pages
  int64_t gradients = 0;  // the accumulator: 4 n, or 8 n in exact mode, pages
  // clients x push_slots x pages(largest partition x gradient type + 128 B of header); a page of
  // each where the rest lies in a GPU. Where some clients may be on another host and others on
  // this, all are counted in both places: each is the most that there may be.
  int64_t slots = 0;
  // With service.memory cuda the three before slots are 0, and there is what is on its way between
  // the GPU and files: staging of each stream, and a partition that is being written.
  int64_t copies = 0;
  int64_t process = kServerProcessBytes;
  ServerGpuMemory gpu;

  // Of the host.
  int64_t total() const {
    return weights + master + moments + gradients + slots + copies + process;
  }
};

// Without slots. `shared_wire`: the wire type where weights are reached there.
ServerGpuMemory PlanServerGpuMemory(std::span<const PartitionSpec> held, Accumulate accumulate,
                                    std::optional<DType> shared_wire = std::nullopt);

// One partition's slot: what a push of the largest of `held` takes, header included.
int64_t PushSlotBytes(std::span<const PartitionSpec> held, DType gradient_type);

ServerMemory PlanServerMemory(std::span<const PartitionSpec> held, const ServiceOptions& service,
                              int64_t clients, const ReachedInGpu& reached = {});

// What servers keep on one GPU.
struct ServersOnGpu {
  int64_t taken = 0;  // before workers join
  int64_t slots = 0;  // of all workers that reach them there, taken as these connect
};

// What local servers take of that GPU, slots included.
int64_t ServersBytesOn(const GpuTurn& gpu, std::span<const ServerMemory> servers);

}  // namespace shoal::plan
