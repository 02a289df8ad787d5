// What of a device's memory this stage has made for a neighbour to open (Device::AllocateShared):
// it goes when the neighbour has closed it, which is a moment after the links that it was made for.
// Who makes new links for that neighbour waits for it first, or the device would hold it twice.
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

  // Until all that was made is gone, `patience` is over or `stop`, asked every few milliseconds,
  // says so. Whether it is gone.
  bool AwaitGone(absl::Duration patience, const std::function<bool()>& stop);

 private:
  struct Count {
    absl::Mutex mutex;
    int there ABSL_GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

}  // namespace shoal::worker
