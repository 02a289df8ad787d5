// All partitions that one server holds, and the operations of a step over them.
//
//   Create -> Load -> { Clear -> ApplyPush... -> Seal -> Commit }*
//
// Owned and sequenced by ParameterService (server/service), which makes sure that commands come one
// at a time and that no push is under way from Seal to Clear. ApplyPush itself may come from many
// threads.
//
// Memory: the weights region belongs to a transport (clients read it in place); everything else is
// allocated here, in memory of the host or of a GPU (partition_state.h). Nothing grows afterwards
// but the record of pushes, which Clear empties.
//
// Shared weights (StoreOptions::shared_weights) are published in memory of the GPU, in a region of
// the same layout beside the one of the host, for clients that reach it there; headers are the
// host's. The host's buffers are filled from when KeepHostWeights is called first, and left alone
// before.
//
// Failure: of the state alone (a GPU's). A Seal that fails loses the attempt; a Commit that fails
// leaves nothing that could be used (failure()): buffers of the version stay marked as being
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/threads/thread_pool.h"
#include "server/store/host_state.h"
#include "server/store/partition.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// Bytes a server needs for its partitions, before it allocates any.
struct StoreBytes {
  int64_t weights = 0;  // the region clients read, both versions
  int64_t master = 0;
  int64_t moments = 0;
  int64_t gradients = 0;
  int64_t total() const { return weights + master + moments + gradients; }
};
StoreBytes CountStoreBytes(std::span<const plan::PartitionSpec> held, const StoreOptions& options);

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
  // must outlive the store. `make_state`: where the rest lies.
  static absl::StatusOr<std::unique_ptr<Store>> Create(
      std::span<const plan::UnitSpec> units, std::span<const plan::PartitionSpec> held,
      const StoreOptions& options, std::span<std::byte> weights, ThreadPool* pool,
      const StateFactory& make_state = HostState::Create);

  // Fills master and moments and publishes them as `version`. Comes before everything else.
  absl::Status Load(int64_t version, const StoreSource& source);

  std::span<const std::unique_ptr<Partition>> partitions() const { return partitions_; }
  // Null if this server does not hold it.
  Partition* Find(int partition);
  const StoreOptions& options() const { return options_; }
  PartitionState& state() { return *state_; }
  const PartitionState& state() const { return *state_; }
  int64_t version() const { return version_; }
  // The region of shared weights: null without.
  const std::shared_ptr<std::byte>& shared_weights() const { return shared_weights_; }
  // From now on published weights are on the host too, those of now included. Comes beside
  // everything.
  absl::Status KeepHostWeights() ABSL_LOCKS_EXCLUDED(weights_mutex_);
  // Not OK once a Commit has failed: what is held then is neither version.
  const absl::Status& failure() const { return failure_; }

  // Forgets gradients and which pushes were taken.
  void Clear();
  // Statistics by partition, ascending. The gradient then stays as it is until Clear.
  absl::StatusOr<std::vector<PartitionStatistics>> Seal();
  absl::flat_hash_map<uint64_t, PushCount> PushCounts() const;

  // AdamW with the sealed gradient; publishes `step` as the next version (step = version() + 1).
  // `ready`, where given, is called with each partition's index in partitions() before its state
  // changes, and may block (a checkpoint still reads it).
  absl::Status Commit(int64_t step, double learning_rate, double clip_coefficient,
                      const std::function<void(size_t)>& ready = nullptr);

  absl::StatusOr<std::vector<PartitionChecksum>> Checksums() const;

 private:
  Store(const StoreOptions& options, ThreadPool* pool) : options_(options), pool_(pool) {}
  void AddPartitions(std::span<const plan::PartitionSpec> held);
  // Work on each partition, in threads; the first failure of any.
  absl::Status ForEachPartition(const std::function<absl::Status(size_t)>& work) const;
  absl::Status LoadPartition(size_t index, int64_t version, const StoreSource& source,
                             bool to_host);
  absl::Status Update(int64_t step, const AdamWScalars& scalars,
                      const std::function<void(size_t)>& ready) ABSL_LOCKS_EXCLUDED(weights_mutex_);
  absl::Status UpdateRange(size_t first, size_t last, int64_t step, const AdamWScalars& scalars)
      ABSL_LOCKS_EXCLUDED(weights_mutex_);
  // Of those of a partition the ones to be written; the host's `to_host` alone.
  WeightsBuffers BuffersOf(size_t partition, int64_t version, bool to_host) const;

  const StoreOptions options_;
  ThreadPool* const pool_;
  int64_t version_ = -1;
  absl::Status failure_;
  std::unique_ptr<PartitionState> state_;
  std::shared_ptr<std::byte> shared_weights_;
  std::span<std::byte> host_weights_;
  absl::Mutex weights_mutex_;  // what is put into published weights in one go
  bool keeps_host_weights_ ABSL_GUARDED_BY(weights_mutex_) = false;
  std::unique_ptr<PartitionState::Pinned> pinned_weights_ ABSL_GUARDED_BY(weights_mutex_);
  std::vector<std::unique_ptr<Partition>> partitions_;
  absl::flat_hash_map<int, size_t> index_;  // by partition id
};

}  // namespace shoal::server
