// One partition on a server: the two published weight buffers (inside the regions that clients
// read), and the record of which pushes the open attempt's sum contains. PartitionState holds
// weights, moments and the sum itself.
//
// Threads: ApplyPush may be called from any thread; pushes to one partition serialise on its mutex.
// The store calls everything else while no push can come (its owner has sealed the attempt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/base/dtype.h"
#include "core/model/partition.h"
#include "core/transport/data_layout.h"
#include "server/store/key_set.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// The version of a buffer that was never published.
inline constexpr uint64_t kNoVersion = ~uint64_t{0};

// Where a partition lies in the weights region, in bytes from its start.
struct WeightsOffsets {
  int64_t header = 0;
  int64_t buffers[2] = {0, 0};
};

class Partition {
 public:
  struct Memory {
    transport::PartitionHeader* header = nullptr;
    WeightsBuffers wire[2];
  };

  // `state` holds the partition at `index`, and must outlive it.
  Partition(const plan::PartitionSpec& spec, const WeightsOffsets& place, const Memory& memory,
            PartitionState& state, size_t index);

  const plan::PartitionSpec& spec() const { return spec_; }
  const WeightsOffsets& place() const { return place_; }
  const Memory& memory() const { return memory_; }

  struct PushOutcome {
    absl::StatusCode code = absl::StatusCode::kOk;
    bool applied_before = false;
    bool complete = false;  // with this one: none is to come any more
  };
  // Adds a gradient of spec().count elements once per contribution key and attempt, whoever sends
  // it. If the state fails, the attempt is lost: this push and all later ones are refused until
  // Clear.
  PushOutcome ApplyPush(int64_t key, DType dtype, const std::byte* payload,
                        PayloadMemory place = PayloadMemory::kHost) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the sum contains that push.
  bool Contains(int64_t key) const ABSL_LOCKS_EXCLUDED(mutex_);
  // How many pushes the sum contains.
  int64_t pushes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether it contains all that were expected: the sum does not change any more.
  bool complete() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Of a backup: takes elements of the gradient, one piece after the other; one that is repeated is
  // taken already.
  absl::Status TakeGradient(int64_t offset, std::span<const float> elements)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // How many elements have come.
  int64_t taken() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Forgets the sum and which pushes it contains. So many are to come now; 0: unknown.
  void Clear(int64_t expected = 0);
  // Completes the sum, which is zero if nothing was pushed. Fails if a push could not be added.
  absl::Status Seal();

  // Follow the sequence protocol of core/transport/data_layout.h for the buffer of `version`. One
  // that has begun, and failed, may begin again.
  void BeginWrite(int64_t version);
  void EndWrite(int64_t version);

 private:
  const plan::PartitionSpec spec_;
  const WeightsOffsets place_;
  const Memory memory_;
  PartitionState& state_;
  const size_t index_;

  mutable absl::Mutex mutex_;
  // Nothing pushed: the accumulator holds an older attempt's sum.
  bool empty_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the state, since Clear
  KeySet keys_ ABSL_GUARDED_BY(mutex_);
  int64_t expected_ ABSL_GUARDED_BY(mutex_) = 0;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::server
