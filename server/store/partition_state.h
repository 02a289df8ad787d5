// The state of a server's partitions - master weights, moments, sums of gradients - and the
// arithmetic over it, wherever it lies: in memory of the host (host_state.h) or of a GPU
// (cuda/cuda_state.h). All kinds give the same bits.
//
// Owned by Store (store.h), which knows what was pushed and what is published, and sequences the
// calls: Add comes from many threads, for each partition from one at a time; Statistics, Update and
// Finish come one at a time and with no Add beside them; Read may come beside everything that
// does not change what it reads. Partitions are named by their index in the layout.
//
// Failure: the host's arithmetic cannot fail. Where a GPU does, the call says so, and what the
// partition's sum (Add, Clear) or its state (Load, Update, Finish) then holds is not to be used.
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
#include "core/model/partition.h"
#include "server/store/accumulate.h"
#include "server/store/adamw.h"

namespace shoal::server {

struct StoreOptions {
  DType wire_type = DType::kF32;
  plan::Accumulate accumulate = plan::Accumulate::kFloat;
  AdamWOptions adamw;
  // Published weights lie in memory of AllocateShared, for clients that reach it there (store.h).
  bool shared_weights = false;

  bool exact() const { return accumulate == plan::Accumulate::kExact; }
  // Bytes of an element's sum.
  int64_t sum_element() const { return exact() ? int64_t{8} : int64_t{4}; }
};

// Supplies elements [offset, offset + out.size()) of a unit. Called from several threads.
using RangeReader = std::function<absl::Status(int unit, int64_t offset, std::span<float> out)>;

// Where the state comes from. Without moments (a fresh model) they are zero.
struct StoreSource {
  RangeReader master;
  RangeReader m;
  RangeReader v;
};

enum class StateArray { kMaster = 0, kFirstMoment = 1, kSecondMoment = 2 };

// What all kinds are made from. Arrays of partitions lie one after the other, in this order.
struct StateLayout {
  StoreOptions options;
  std::vector<plan::PartitionSpec> partitions;
  std::vector<std::vector<plan::DecayRange>> decay;  // by partition
};

// What an array of `count` elements takes. No two arrays share a page, and those that are walked
// through together start at different places within one: stores and loads of a CPU whose addresses
// agree in their last twelve bits wait for each other.
inline constexpr int64_t kStatePage = 4096;
inline constexpr int64_t kStateStagger = 256;
inline int64_t StateArrayBytes(int64_t count, int64_t element) {
  return RoundUp(count * element, kStatePage) + kStateStagger;
}

// Where a pushed gradient lies: in memory of the host, or of AllocateShared.
enum class PayloadPlace : uint8_t { kHost, kShared };

// Where weights of a partition are published: on the host, in memory of AllocateShared, or both.
struct WeightsBuffers {
  std::byte* host = nullptr;
  std::byte* shared = nullptr;
};

class PartitionState {
 public:
  // Host memory that the state's copies reach at full speed as long as this is kept.
  class Pinned {
   public:
    virtual ~Pinned() = default;
  };

  virtual ~PartitionState() = default;

  // Memory beside the state where that is not the host's: zeroed, an allocation of its own that
  // other processes may be let into (core/transport/gpu_memory.h), and that may outlive the state.
  // Unimplemented where the state lies on the host. Comes beside everything.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) = 0;

  // Fills master and moments, and writes the weights to `weights` in the wire type.
  virtual absl::Status Load(size_t partition, const StoreSource& source,
                            const WeightsBuffers& weights) = 0;

  // sum = 0 + payload where it is the `first`, else sum += payload. What is not finite or out of
  // range of an exact sum is counted. The payload is not looked at any more once this returns; the
  // sum is there for all calls after it.
  virtual absl::Status Add(size_t partition, DType dtype, const std::byte* payload,
                           PayloadPlace place, bool first) = 0;
  // sum = 0.
  virtual absl::Status Clear(size_t partition) = 0;
  // Of the sums, by partition; non_finite counts what Add refused too.
  virtual absl::StatusOr<std::vector<GradientStatistics>> Statistics() = 0;

  // AdamW with the sums on partitions [first, last); the new weights come to weights[i - first].
  // All is done, and whoever reads the weights finds them, once Finish returns.
  virtual absl::Status Update(size_t first, size_t last, const AdamWScalars& scalars,
                              std::span<const WeightsBuffers> weights) = 0;
  virtual absl::Status Finish() = 0;
  // weights.host = weights.shared, of a whole partition, after all that was put before it. May come
  // beside Add; not beside Update and Finish.
  virtual absl::Status CopyToHost(size_t partition, const WeightsBuffers& weights) = 0;

  // A whole array: in place where the host reaches it, else copied into `scratch`.
  virtual absl::StatusOr<std::span<const float>> Read(size_t partition, StateArray array,
                                                      std::vector<float>& scratch) const = 0;

  // For memory that payloads come from or weights go to. Null where it makes no difference or
  // cannot be had. Goes before the memory, and may outlive the state.
  virtual std::unique_ptr<Pinned> Pin(std::span<std::byte> memory) = 0;
};

using StateFactory = std::function<absl::StatusOr<std::unique_ptr<PartitionState>>(
    const StateLayout& layout, ThreadPool* pool)>;

}  // namespace shoal::server
