// State of partitions on its way from the server that holds them to the one that is to: the giver
// answers reads of its published version, the taker loads from them as from a file.
//
// What comes is checked: its length, and its hash against what the giver read. State does not
// change between commits, so that copies of one version are the same whenever they are made.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/threads/thread_pool.h"
#include "core/model/partition.h"
#include "proto/server.pb.h"
#include "server/store/job_store.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// Of one read: 1 MiB.
inline constexpr int64_t kMostStateElements = int64_t{1} << 18;

// Reads of one fetch that are under way at once: what is in memory for them is bounded.
inline constexpr int kReadsAtOnce = 4;

// Of an element: its gradient, for backups.
inline constexpr int64_t kGradientBytes = 4;

// Of a connection, that much for each of them.
inline constexpr int64_t kStateSlotBytes = kMostStateElements * int64_t{sizeof(float)};

// Reads what one server is asked for into `out`. DataLoss: that is not what it read. Thread-safe.
using StateReader =
    std::function<absl::Status(const proto::ReadStateRequest&, std::span<float> out)>;

// Whether these have the hash that the giver took.
absl::Status CheckElements(std::span<const float> elements, uint64_t hash);
// Of an answer that has the elements.
absl::Status TakeElements(const absl::StatusOr<proto::ReadStateReply>& reply, std::span<float> out);

// Into `slot`, or where that is empty into the answer. NotFound for a partition that is not held,
// FailedPrecondition for a version that is not published. A gradient must be sealed.
absl::StatusOr<proto::ReadStateReply> ReadState(const JobStore& store,
                                                const proto::ReadStateRequest& request,
                                                std::span<std::byte> slot = {});

// Where the state of a partition comes from.
struct StateGiver {
  std::string name;  // for messages
  StateReader read;
};

// The state of these partitions, each at its giver, by partition id. `wanted` says of which job,
// run and version. `readers` read the pieces of one array at a time.
StoreSource FetchedFrom(const std::vector<plan::PartitionSpec>& partitions,
                        const std::map<int, StateGiver>& givers,
                        const proto::ReadStateRequest& wanted, ThreadPool* readers);

// Of what a JobStore has reserved, how a store of some of it is made.
struct ReservedStore {
  JobStore* store = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<Store>>(const std::vector<plan::PartitionSpec>&)>
      make;
};

// Makes and loads stores of those reserved partitions that `givers` has, in place of what was to
// arrive. InvalidArgument if there are none, or one is not reserved. `job`: all of its partitions;
// `base`: of what is frozen.
absl::Status FetchReserved(const std::vector<ReservedStore>& stores,
                           const std::vector<plan::PartitionSpec>& job,
                           const std::map<int, StateGiver>& givers,
                           const proto::ReadStateRequest& wanted, const plan::UnitReader& base,
                           ThreadPool* readers);

// The sealed gradients of such partitions, of the attempt that `wanted` says.
plan::UnitReader GradientsFrom(const std::vector<plan::PartitionSpec>& partitions,
                               const std::map<int, StateGiver>& givers,
                               const proto::ReadStateRequest& wanted, ThreadPool* readers);

}  // namespace shoal::server
