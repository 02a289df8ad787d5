// One partition's state on a server: the two published weight buffers (inside the region that
// clients read), the fp32 master weights, AdamW's moments, and the gradient accumulator of the open
// attempt with the record of which pushes it holds.
//
// Threads: ApplyPush may come from any thread; pushes to one partition serialise on its mutex.
// Everything else is called by the store while no push can come (its owner has sealed the attempt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/dtype.h"
#include "plan/job.h"
#include "plan/partition.h"
#include "server/store/accumulate.h"
#include "server/store/sequence_set.h"
#include "transport/data_layout.h"

namespace shoal::server {

// The version a buffer has that was never published.
inline constexpr uint64_t kNoVersion = ~uint64_t{0};

// Who counted how often, in the open attempt.
struct PushCount {
  int64_t pushes = 0;
  int64_t duplicates = 0;
};

// Where a partition lies in the weights region, in bytes from its start.
struct WeightsPlace {
  int64_t header = 0;
  int64_t buffers[2] = {0, 0};
};

class Partition {
 public:
  struct Memory {
    transport::PartitionHeader* header = nullptr;
    std::byte* wire[2] = {nullptr, nullptr};
    float* master = nullptr;
    float* m = nullptr;
    float* v = nullptr;
    float* sum = nullptr;          // float mode
    int64_t* exact_sum = nullptr;  // exact mode
  };

  Partition(const plan::PartitionSpec& spec, std::vector<plan::DecayRange> decay,
            const WeightsPlace& place, const Memory& memory);

  const plan::PartitionSpec& spec() const { return spec_; }
  const std::vector<plan::DecayRange>& decay() const { return decay_; }
  const WeightsPlace& place() const { return place_; }
  const Memory& memory() const { return memory_; }
  std::span<const float> master() const {
    return {memory_.master, static_cast<size_t>(spec_.count)};
  }

  struct PushOutcome {
    absl::StatusCode code = absl::StatusCode::kOk;
    bool applied_before = false;
  };
  // Adds a gradient of spec().count elements once per (incarnation, sequence) and attempt.
  PushOutcome ApplyPush(uint64_t incarnation, int64_t sequence, DType dtype,
                        const std::byte* payload);
  // Whether that push is in the accumulator. Counts a duplicate if so.
  bool CountIfApplied(uint64_t incarnation, int64_t sequence);

  // Forgets the accumulator and the record of pushes.
  void Clear();
  // Makes the accumulator whole: zero where nothing was pushed. False in that case.
  bool Seal();
  // Exact mode: elements that were not added since Clear (NaN, infinite, out of range).
  int64_t refused_elements() const;
  void AddCounts(absl::flat_hash_map<uint64_t, PushCount>& counts) const;

  // Elements [begin, end) of the sealed gradient: the accumulator itself, or converted into
  // `scratch`.
  const float* Gradient(int64_t begin, int64_t end, float* scratch) const;

  // The sequence protocol of transport/data_layout.h for the buffer of `version`.
  void BeginWrite(int64_t version);
  void EndWrite(int64_t version);

 private:
  struct Sender {
    SequenceSet sequences;
    int64_t duplicates = 0;
  };

  void Accumulate(DType dtype, const std::byte* payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const plan::PartitionSpec spec_;
  const std::vector<plan::DecayRange> decay_;
  const WeightsPlace place_;
  const Memory memory_;

  mutable absl::Mutex mutex_;
  bool empty_ ABSL_GUARDED_BY(mutex_) =
      true;  // nothing pushed: what the accumulator holds is of an older attempt
  int64_t refused_elements_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Sender> senders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::server
