// The state of a server's partitions (master weights, moments, sums of gradients) and the
// arithmetic on it, in host memory (host_state.h) or GPU memory (cuda/cuda_state.h). All kinds give
// the same bits. Partitions are named by their index in the layout.
//
// Store (store.h) owns it, knows what was pushed and what is published, and sequences the calls:
// - Add is called from many threads, for each partition from one at a time.
// - Statistics, Update and Finish are called one at a time and never concurrently with Add.
// - Read may run concurrently with everything that does not change what it reads.
//
// Failure: the host's arithmetic cannot fail. A GPU's can: the call returns the error, and the
// partition's sum (Add, Clear) or its state (Load, Update, Finish) must not be used afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/bytes.h"
#include "core/base/dtype.h"
#include "core/base/threads/thread_pool.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "server/store/accumulate.h"
#include "server/store/optimizer.h"
#include "server/store/update_rules.h"

namespace shoal::server {

struct StoreOptions {
  DType wire_type = DType::kF32;
  plan::Accumulate accumulate = plan::Accumulate::kFloat;
  OptimizerOptions optimizer;
  std::vector<plan::ParameterGroup> groups;  // of the job
  // Published weights lie in memory of AllocateShared, for clients that reach it there (store.h).
  bool shared_weights = false;
  // Of partitions that another server has: nothing is pushed here. Sums come sealed and rounded
  // (LoadGradient).
  bool backup = false;
  bool backups_publish = false;  // service.read_replicas

  // Whether clients read weights here.
  bool publishes() const { return !backup || backups_publish; }

  // What backups of such partitions are kept by.
  StoreOptions OfBackups() const {
    StoreOptions options = *this;
    options.accumulate = plan::Accumulate::kFloat;
    options.backup = true;
    options.shared_weights = false;
    return options;
  }
  bool exact() const { return accumulate == plan::Accumulate::kExact; }
  // Size of the sum of one element.
  int64_t sum_element() const { return exact() ? int64_t{8} : int64_t{4}; }
};

// Where the initial state comes from. Without moments (a fresh model) they are zero; those that the
// optimizer does not keep are not asked for.
struct StoreSource {
  plan::UnitReader master;
  plan::UnitReader m;
  plan::UnitReader v;
  // Of partitions that are frozen: files, which are read again whenever their fp32 weights are
  // asked for, since nobody keeps these.
  plan::UnitReader base;
};

enum class StateArray { kMaster = 0, kFirstMoment = 1, kSecondMoment = 2 };

// What every kind is made from. Arrays of partitions lie one after the other, in this order.
struct StateLayout {
  StoreOptions options;
  std::vector<plan::PartitionSpec> partitions;  // those that are frozen with a count of 0
  std::vector<UpdateRule> rules;
  std::vector<std::vector<UpdateRange>> updates;  // by partition

  bool frozen(const UpdateRange& range) const { return rules[range.rule].frozen; }
};

// Returns the bytes to reserve for an array of `count` elements. No two arrays share a page, and
// arrays that are traversed together start at different offsets within one: a CPU's stores and
// loads wait for each other if their addresses agree in the last twelve bits.
inline constexpr int64_t kStatePage = 4096;
inline constexpr int64_t kStateStagger = 256;
inline int64_t StateArrayBytes(int64_t count, int64_t element) {
  return count == 0 ? 0 : RoundUp(count * element, kStatePage) + kStateStagger;
}

// Where a pushed gradient lies: in host memory, or in memory of AllocateShared.
enum class PayloadMemory : uint8_t { kHost, kShared };

// Where weights of a partition are published: on the host, in memory of AllocateShared, or both.
struct WeightsBuffers {
  std::byte* host = nullptr;
  std::byte* shared = nullptr;
};

class PartitionState {
 public:
  // Host memory that the state's copies reach at full speed during this object's lifetime.
  class Pinned {
   public:
    virtual ~Pinned() = default;
  };

  virtual ~PartitionState() = default;

  // Allocates zeroed memory where the state lies, if that is not the host: a separate allocation
  // that other processes may open (core/transport/gpu_memory.h), and that may outlive the state.
  // Unimplemented if the state lies on the host. Thread-safe.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) = 0;

  // Fills master and moments, and writes the weights to `weights` in the wire type.
  virtual absl::Status Load(size_t partition, const StoreSource& source,
                            const WeightsBuffers& weights) = 0;

  // sum = 0 + payload if `first`, else sum += payload. An exact sum counts elements that are not
  // finite or out of range. The payload is not read any more once this returns; all later calls see
  // the sum.
  virtual absl::Status Add(size_t partition, DType dtype, const std::byte* payload,
                           PayloadMemory place, bool first) = 0;
  // sum = 0.
  virtual absl::Status Clear(size_t partition) = 0;
  // Makes the sums of what is frozen zero, and returns the sums' statistics, by partition;
  // non_finite includes what Add refused.
  virtual absl::StatusOr<std::vector<GradientStatistics>> Statistics() = 0;

  // Makes the sum of what is frozen in it zero, before Statistics, of one that takes no more.
  virtual void ClearFrozen(size_t partition) = 0;
  // Copies elements of the sum, rounded as Update sees them, once Statistics or ClearFrozen has
  // been called.
  virtual absl::Status ReadGradient(size_t partition, int64_t begin,
                                    std::span<float> out) const = 0;
  // Of a backup, which lies on the host: elements of the sum = what another server's ReadGradient
  // gave, or from one on all that it gives.
  virtual absl::Status WriteGradient(size_t /*partition*/, int64_t /*begin*/,
                                     std::span<const float> /*elements*/) {
    return absl::UnimplementedError("a backup lies in a GPU's memory");
  }
  virtual absl::Status LoadGradient(size_t /*partition*/, int64_t /*begin*/,
                                    const plan::UnitReader& /*gradient*/) {
    return absl::UnimplementedError("a backup lies in a GPU's memory");
  }

  // Runs the optimizer with the sums on partitions [first, last), `scalars` by rule, and writes
  // partition i's new weights to weights[i - first] (of backups: nowhere). Complete, and visible to
  // readers of the weights, only once Finish returns.
  virtual absl::Status Update(size_t first, size_t last, std::span<const UpdateScalars> scalars,
                              std::span<const WeightsBuffers> weights) = 0;
  virtual absl::Status Finish() = 0;
  // weights.host = weights.shared, for a whole partition, after all earlier work. May run
  // concurrently with Add, but not with Update and Finish.
  virtual absl::Status CopyToHost(size_t partition, const WeightsBuffers& weights) = 0;
  // weights.shared = weights.host, of so many bytes, before anybody reads it.
  virtual absl::Status CopyToShared(const WeightsBuffers& weights, int64_t bytes) = 0;

  // Returns a whole array: in place if the host reaches it as fp32, else copied into `scratch`. A
  // moment that the optimizer does not keep has no elements.
  virtual absl::StatusOr<std::span<const float>> Read(size_t partition, StateArray array,
                                                      std::vector<float>& scratch) const = 0;
  // Copies elements of such an array. InvalidArgument for a moment that is not kept.
  virtual absl::Status ReadPart(size_t partition, StateArray array, int64_t begin,
                                std::span<float> out) const = 0;

  // The partition is used no more: gives back the memory that it alone takes, where that can be.
  virtual void Drop(size_t /*partition*/) {}

  // For memory that payloads come from or weights go to. Null if it makes no difference or is not
  // possible. Destroy the result before the memory; it may outlive the state.
  virtual std::unique_ptr<Pinned> Pin(std::span<std::byte> memory) = 0;
};

using StateFactory = std::function<absl::StatusOr<std::unique_ptr<PartitionState>>(
    const StateLayout& layout, ThreadPool* pool)>;

}  // namespace shoal::server
