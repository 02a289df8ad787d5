// Buffers for whole units in a device's memory, one size per distinct unit size. One may be
// released while work on a stream still uses it: it then carries the event after which it may be
// filled, and its next user makes their stream wait for that. Oldest released, first acquired.
// Externally locked; allocates only when created. Transports, if given, write out of the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/buffer_sizes.h"
#include "client/registered_memory.h"
#include "core/transport/transport.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct DeviceBuffer {
  std::byte* data = nullptr;
  std::shared_ptr<const Event> free_after;  // null: nothing has used it
};

class DeviceBuffers {
 public:
  DeviceBuffers() = default;
  static absl::StatusOr<DeviceBuffers> Create(
      client::BufferSizes sizes, Device& device,
      std::span<transport::Transport* const> transports = {});

  // Returns none if all of the unit's size are in use.
  std::optional<DeviceBuffer> Acquire(int unit);
  void Release(int unit, DeviceBuffer buffer);
  // Replaces the events of free buffers by `now`, which is later than all their uses. Their own
  // events may carry the ended step's failure, which must not reach the next attempt.
  void FreeAfter(const std::shared_ptr<const Event>& now);
  int64_t bytes() const { return sizes_.total_bytes(); }

 private:
  client::BufferSizes sizes_;
  std::vector<std::deque<DeviceBuffer>> free_;        // by size
  std::unique_ptr<client::RegisteredMemory> memory_;  // null: there are none
};

}  // namespace shoal::worker
