// Tables that kernels read, in device memory, kept from layer to layer: the same microbatch needs
// the same tables in every layer.
//
// Keeps the last `most` tables, each with an Entry that says what it was made from, by which it is
// found again. A table is staged in pinned memory and copied on the stream; both device and host
// reuse dropped memory only after the work enqueued so far, so nothing here waits. Threads: one at
// a time, with the device current.
//
// Failure: that of the device's memory, or of the copy. The copy is enqueued as kernels are, also
// after a failure that the stream has yet to report; otherwise kernels would read what was never
// copied, now or, since the table is kept, in the next attempt.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_device.h"

namespace shoal::worker::cuda {

template <typename Entry>
class KeptUploads {
 public:
  struct Kept {
    Entry entry;
    Buffer table;
  };

  // Device and stream must outlive this; work that uses the tables is put on this stream.
  KeptUploads(Device& device, Stream& stream, size_t most)
      : device_(device), stream_(stream), most_(most), host_memory_(device.NewHostMemory(0)) {}

  // Returns the table whose entry is wanted; null if none is kept. Valid until the next Keep, and
  // its table for work put on the stream before that.
  template <typename IsWanted>
  const Kept* Find(const IsWanted& is_wanted) {
    const auto found = std::ranges::find_if(kept_, is_wanted, &Kept::entry);
    if (found == kept_.end()) {
      return nullptr;
    }
    kept_.splice(kept_.begin(), kept_, found);
    return &kept_.front();
  }

  // Uploads the `bytes` that `fill` writes; no table for 0 bytes. Valid as long as Find's.
  template <typename Fill>
  absl::StatusOr<const Kept*> Keep(Entry entry, int64_t bytes, const Fill& fill) {
    Kept made{.entry = std::move(entry), .table = Buffer()};
    if (bytes > 0) {
      SHOAL_ASSIGN_OR_RETURN(const Buffer staging, host_memory_->Allocate(bytes));
      SHOAL_ASSIGN_OR_RETURN(made.table, device_.Allocate(bytes));
      fill(staging.data());
      SHOAL_RETURN_IF_ERROR(gpu::ToStatus(
          cudaMemcpyAsync(made.table.data(), staging.data(), static_cast<size_t>(bytes),
                          cudaMemcpyDefault, NativeStream(stream_)),
          GpuOf(device_).index, "copying a table that kernels read"));
    }
    kept_.push_front(std::move(made));
    if (kept_.size() > most_) {
      kept_.pop_back();
    }
    return &kept_.front();
  }

 private:
  Device& device_;
  Stream& stream_;
  const size_t most_;
  const std::unique_ptr<Memory> host_memory_;
  std::list<Kept> kept_;  // most recently used first
};

}  // namespace shoal::worker::cuda
