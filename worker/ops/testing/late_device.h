// A test device that computes asynchronously on the CPU, as late as possible: work on its streams
// runs when somebody waits for it, in any order that events allow, drawn from a seed. Only work on
// its streams may touch its memory; any other access aborts. New memory is full of NaN.
//
// With LateOps the CPU's operators run on it, to the same bits, so a difference means a wrong order
// of work. Copies read and write host memory when they run, as with pinned memory.
//
// Thread-safe; work runs in the thread that waits, one piece at a time.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "core/base/memory/range_allocator.h"
#include "core/base/random.h"
#include "worker/backend/backend.h"
#include "worker/ops/compute_device.h"

namespace shoal::worker {

class LateDevice final : public Device {
 public:
  explicit LateDevice(uint64_t seed, int64_t bytes = int64_t{256} << 20);
  ~LateDevice() override;

  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> NewStream(StreamKind kind) override;
  std::unique_ptr<Memory> NewHostMemory(int64_t budget_bytes) override;

  std::string_view name() const override { return "late"; }
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override;
  int64_t budget_bytes() const override { return bytes_; }
  int64_t allocated_bytes() const override;
  int64_t peak_bytes() const override;

  // Puts work on one of its streams.
  static void Put(Stream& stream, std::function<void()> work);

 private:
  class LateStream;
  class LateEvent;
  struct Moment {
    bool done = false;
    absl::Time at;
  };
  struct Piece {
    std::function<void()> work;      // or
    std::shared_ptr<Moment> record;  // or
    std::shared_ptr<const Moment> wait;
  };

  void Free(std::byte* data, int64_t bytes) override;
  // Runs work until that moment has come.
  void RunUntil(const Moment& moment);

  const int64_t bytes_;
  std::byte* const memory_;
  const std::unique_ptr<Device> host_;  // host memory comes from it
  mutable absl::Mutex mutex_;
  Random random_;
  RangeAllocator ranges_;
  int64_t peak_ = 0;
  std::vector<LateStream*> streams_;
};

// The CPU's operators on such a device. One thread computes, so that bits are those of
// MakeCpuComputeDevice(1).
ComputeDevice MakeLateComputeDevice(uint64_t seed);

}  // namespace shoal::worker
