// Device memory that this stage has made for a neighbour to open (Device::AllocateShared). It is
// freed when the neighbour has closed it, slightly after the links for which it was made. Before
// making new links for that neighbour, wait for it, or the device would hold it twice.
//
// Thread-safe. Memory may outlive this.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

class LentMemory {
 public:
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(Device& device, int64_t bytes);

  // Waits until everything made has been freed, `patience` is over or `stop`, asked every few
  // milliseconds, returns true. Returns whether it has been freed.
  bool AwaitGone(absl::Duration patience, const std::function<bool()>& stop);

 private:
  struct Count {
    absl::Mutex mutex;
    int there ABSL_GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

}  // namespace shoal::worker
