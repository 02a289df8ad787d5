// All partitions that one server holds: their memory, and the operations of a step over them.
//
//   Create -> Load -> { Clear -> ApplyPush... -> Seal -> Commit }*
//
// Owned and sequenced by ParameterService (server/service), which makes sure that commands come one
// at a time and that no push is under way from Seal to Clear. ApplyPush itself may come from many
// threads. Work is spread over the given pool in fixed chunks, so results do not depend on how many
// threads there are.
//
// Memory: the weights region belongs to a transport (clients read it in place); everything else is
// allocated here, all of it touched by Load, so that a machine with too little says so before
// training starts. Nothing grows afterwards but the record of pushes, which Clear empties.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "server/store/adamw.h"
#include "server/store/page_buffer.h"
#include "server/store/partition.h"

namespace shoal::server {

struct StoreOptions {
  DType wire_type = DType::kF32;
  plan::Accumulate accumulate = plan::Accumulate::kFloat;
  AdamWOptions adamw;
};

// Bytes a server needs for its partitions, before it allocates any.
struct StoreBytes {
  int64_t weights = 0;  // the region clients read, both versions
  int64_t master = 0;
  int64_t moments = 0;
  int64_t gradients = 0;
  int64_t total() const { return weights + master + moments + gradients; }
};
StoreBytes CountStoreBytes(std::span<const plan::PartitionSpec> held, const StoreOptions& options);

// Supplies elements [offset, offset + out.size()) of a unit. Called from several threads.
using RangeReader = std::function<absl::Status(int unit, int64_t offset, std::span<float> out)>;

// Where the state comes from. Without moments (a fresh model) they are zero.
struct StoreSource {
  RangeReader master;
  RangeReader m;
  RangeReader v;
};

struct PartitionStatistics {
  int partition = 0;
  GradientStatistics gradient;
};

struct PartitionChecksum {
  int partition = 0;
  uint64_t hash = 0;  // XXH3-64 of the fp32 master weights
};

class Store {
 public:
  // `held` ascending by id; `weights` has CountStoreBytes().weights zeroed bytes and, like `pool`,
  // must outlive the store.
  static absl::StatusOr<std::unique_ptr<Store>> Create(std::span<const plan::UnitSpec> units,
                                                       std::span<const plan::PartitionSpec> held,
                                                       const StoreOptions& options,
                                                       std::span<std::byte> weights,
                                                       ThreadPool* pool);

  // Fills master and moments and publishes them as `version`.
  absl::Status Load(int64_t version, const StoreSource& source);

  std::span<const std::unique_ptr<Partition>> partitions() const { return partitions_; }
  // Null if this server does not hold it.
  Partition* Find(int partition);
  const StoreOptions& options() const { return options_; }
  int64_t version() const { return version_; }

  // Forgets gradients and which pushes were taken.
  void Clear();
  // Statistics by partition, ascending. The gradient then stays as it is until Clear.
  std::vector<PartitionStatistics> Seal();
  absl::flat_hash_map<uint64_t, PushCount> PushCounts() const;

  // AdamW with the sealed gradient; publishes `step` as the next version (step = version() + 1).
  // `ready`, where given, is called with each partition's index in partitions() before its state
  // changes, and may block (a checkpoint still reads it).
  void Commit(int64_t step, double learning_rate, double clip_coefficient,
              const std::function<void(size_t)>& ready = nullptr);

  std::vector<PartitionChecksum> Checksums() const;

 private:
  // A run of elements of one partition to which the same decay applies.
  struct Chunk {
    size_t partition = 0;
    int64_t begin = 0;
    int64_t end = 0;
    bool decays = false;
  };

  Store(const StoreOptions& options, ThreadPool* pool) : options_(options), pool_(pool) {}
  absl::Status Allocate(std::span<const plan::UnitSpec> units,
                        std::span<const plan::PartitionSpec> held, std::span<std::byte> weights);
  void BuildChunks();
  absl::Status LoadPartition(Partition& partition, int64_t version,
                             const StoreSource& source) const;
  void UpdateChunk(const Chunk& chunk, const AdamWScalars& scalars, int64_t step) const;
  void UpdateChunks(size_t first, size_t last, const AdamWScalars& scalars, int64_t step) const;

  const StoreOptions options_;
  ThreadPool* const pool_;
  int64_t version_ = -1;
  PageBuffer master_, moments_, gradients_;
  std::vector<std::unique_ptr<Partition>> partitions_;
  absl::flat_hash_map<int, size_t> index_;  // by partition id
  std::vector<Chunk> update_chunks_;        // by partition
  std::vector<size_t> first_update_chunk_;  // by partition, and the end
  std::vector<Chunk> reduction_chunks_;     // by partition; `decays` means nothing here
};

}  // namespace shoal::server
