// Partitions that came to a server together, in memory of their own (an extent), and the operations
// of a step over them. JobStore (job_store.h) has all extents of a job.
//
//   Create -> Load -> { Clear -> ApplyPush... -> Seal -> Commit }*
//
// Its owner sequences the calls: commands come one at a time, and no push is in progress from Seal
// to Clear. ApplyPush may be called from many threads.
//
// Memory: the weights region belongs to a transport (clients read it in place); everything else is
// allocated here, in host or GPU memory (partition_state.h). Afterwards only the record of pushes
// grows, and Clear empties it. Drop gives back what a partition took of the host's state.
//
// Shared weights (StoreOptions::shared_weights) are published in GPU memory, in a region of the
// same layout as the host's, for clients that reach it there; headers are the host's. The host's
// buffers are filled only once KeepHostWeights has been called.
//
// Of a partition that is frozen there is one buffer of weights, version 0, and nothing else: it
// takes no push and is in no Seal, no Commit. If its weights are in NF4, Load makes them so, out of
// files that have them as they were. A backup of it that publishes nothing holds nothing.
//
// Failure: only the state can fail (a GPU's). A Seal that fails loses the attempt; a Commit that
// fails leaves nothing usable (failure()): buffers of the version stay marked as being written.
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
#include "core/model/nf4_partition.h"
#include "server/store/host_state.h"
#include "server/store/partition.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// Bytes that a server needs for its partitions, computed before it allocates any.
struct StoreBytes {
  int64_t weights = 0;  // the region that clients read: both versions, or the one of what is frozen
  int64_t master = 0;
  int64_t moments = 0;
  int64_t gradients = 0;
  int64_t total() const { return weights + master + moments + gradients; }
  StoreBytes operator+(const StoreBytes& other) const {
    return {weights + other.weights, master + other.master, moments + other.moments,
            gradients + other.gradients};
  }
};
StoreBytes CountStoreBytes(std::span<const plan::PartitionSpec> held, const StoreOptions& options);
// Where these lie in a region of as many bytes of weights, in their order.
std::vector<WeightsOffsets> PlaceWeights(std::span<const plan::PartitionSpec> held,
                                         const StoreOptions& options);

struct PartitionStatistics {
  int partition = 0;
  GradientStatistics gradient;
  int64_t pushes = 0;  // that the gradient is the sum of
};

struct PartitionChecksum {
  int partition = 0;
  // XXH3-64 of the fp32 master weights; of what is frozen, of its published ones in fp32, or as
  // they are in NF4.
  uint64_t hash = 0;
};

class Store {
 public:
  // `held` must ascend by id; `weights` must have CountStoreBytes().weights zeroed bytes (none of
  // backups) and, like `pool`, outlive the store. `make_state` decides where everything else lies.
  // `places`: of each in `weights`, which may be larger; none: as PlaceWeights has them.
  static absl::StatusOr<std::unique_ptr<Store>> Create(
      std::span<const plan::UnitSpec> units, std::span<const plan::PartitionSpec> held,
      const StoreOptions& options, std::span<std::byte> weights, ThreadPool* pool,
      const StateFactory& make_state = HostState::Create,
      std::span<const WeightsOffsets> places = {});

  // Fills master and moments and publishes them as `version`. Call it before everything else.
  absl::Status Load(int64_t version, const StoreSource& source);

  // Null: it was dropped.
  std::span<const std::unique_ptr<Partition>> partitions() const { return partitions_; }
  // Of one that another server holds now: it takes part in nothing any more.
  void Drop(size_t partition);
  // Null if this server does not hold it.
  Partition* Find(int partition);
  const StoreOptions& options() const { return options_; }
  PartitionState& state() { return *state_; }
  const PartitionState& state() const { return *state_; }
  // As PartitionState has it; of what is frozen, out of the source that Load was given.
  absl::StatusOr<std::span<const float>> Read(size_t partition, StateArray array,
                                              std::vector<float>& scratch) const;
  int64_t version() const { return version_; }
  // The region of shared weights, or null.
  const std::shared_ptr<std::byte>& shared_weights() const { return shared_weights_; }
  // Also publishes weights to host memory, starting with the current versions. Thread-safe.
  absl::Status KeepHostWeights() ABSL_LOCKS_EXCLUDED(weights_mutex_);
  // Not OK once a Commit has failed: the state then is neither of the old nor of the new version.
  const absl::Status& failure() const { return failure_; }

  // Of backups: takes what has not come yet of the sealed gradient.
  absl::Status LoadGradient(const plan::UnitReader& gradient);
  // Forgets gradients and which pushes were taken. By unit: how many are to come to each of its
  // partitions; empty: unknown.
  void Clear(std::span<const int64_t> unit_pushes = {});
  // Returns statistics by partition, ascending. The gradient then stays unchanged until Clear.
  absl::StatusOr<std::vector<PartitionStatistics>> Seal();

  // Runs the optimizer with the sealed gradient and publishes `step` as the next version (step =
  // version() + 1). Calls `ready`, if given, with each partition's index in partitions() before its
  // state changes; it may block (while a checkpoint still reads it), and its error ends the commit.
  using Ready = std::function<absl::Status(size_t)>;
  absl::Status Commit(int64_t step, double learning_rate, double clip_coefficient,
                      const Ready& ready = nullptr);
  // The same with weights and moments as they are, to the bit, whatever the gradient is.
  absl::Status Skip(int64_t step, const Ready& ready = nullptr);

  absl::StatusOr<std::vector<PartitionChecksum>> Checksums() const;

 private:
  Store(const StoreOptions& options, ThreadPool* pool)
      : options_(options), rules_(options.optimizer.weight_decay, options.groups), pool_(pool) {}
  void AddPartitions(std::span<const plan::PartitionSpec> held,
                     std::span<const WeightsOffsets> places);
  // Runs the work on each partition, in threads; returns any partition's first failure.
  absl::Status ForEachPartition(const std::function<absl::Status(size_t)>& work) const;
  // Whether it is here and has a state.
  bool Trains(size_t partition) const {
    return partitions_[partition] != nullptr && !partitions_[partition]->spec().frozen;
  }
  absl::Status LoadPartition(size_t index, int64_t version, const StoreSource& source,
                             bool to_host);
  absl::Status LoadFrozen(size_t index);
  uint64_t HashOfFrozen(size_t partition) const;
  absl::Status Publish(int64_t step, std::span<const UpdateScalars> scalars, const Ready& ready);
  absl::Status Update(int64_t step, std::span<const UpdateScalars> scalars, const Ready& ready)
      ABSL_LOCKS_EXCLUDED(weights_mutex_);
  size_t EndOfRun(size_t first) const;
  absl::Status UpdateSome(size_t first, size_t last, int64_t step,
                          std::span<const UpdateScalars> scalars)
      ABSL_LOCKS_EXCLUDED(weights_mutex_);
  // Returns those buffers of a partition that are to be written; the host's only with `to_host`.
  WeightsBuffers BuffersOf(size_t partition, int64_t version, bool to_host) const;

  // By rule.
  std::vector<UpdateScalars> ScalarsOf(int64_t step, double learning_rate,
                                       double clip_coefficient) const;

  const StoreOptions options_;
  const UpdateRules rules_;
  ThreadPool* const pool_;
  int64_t version_ = -1;
  absl::Status failure_;
  plan::UnitReader base_;                                 // of what is frozen
  std::vector<std::unique_ptr<plan::Nf4Partition>> nf4_;  // by partition; null: is not in it
  std::unique_ptr<PartitionState> state_;
  std::shared_ptr<std::byte> shared_weights_;
  std::span<std::byte> host_weights_;
  PageBuffer headers_;         // of what is not published, which nobody reads
  absl::Mutex weights_mutex_;  // held while a sequence of writes to published weights is enqueued
  bool keeps_host_weights_ ABSL_GUARDED_BY(weights_mutex_) = false;
  std::unique_ptr<PartitionState::Pinned> pinned_weights_ ABSL_GUARDED_BY(weights_mutex_);
  std::vector<std::unique_ptr<Partition>> partitions_;
  absl::flat_hash_map<int, size_t> index_;  // by partition id
};

}  // namespace shoal::server
