// Buffers for whole units in a device's memory, in one size per distinct unit size. One may be
// given back before work that is on a stream has finished with it: it then carries the event after
// which it may be filled again, and whoever takes it makes their own stream wait for that. Those
// given back first are taken first, so that there is least to wait for. Externally locked;
// allocates only when created.
//
// Where they are given transports, these write out of the buffers.
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

  // None: all of the unit's size are in use.
  std::optional<DeviceBuffer> Acquire(int unit);
  void Release(int unit, DeviceBuffer buffer);
  // Of those that are not taken: `now` comes after all that has used them, and takes the place of
  // events of the step that ends. Theirs may tell of its failure, which whoever waits for one takes
  // over, and the next attempt is to start anew.
  void FreeAfter(const std::shared_ptr<const Event>& now);
  int64_t bytes() const { return sizes_.total_bytes(); }

 private:
  client::BufferSizes sizes_;
  std::vector<std::deque<DeviceBuffer>> free_;        // by size
  std::unique_ptr<client::RegisteredMemory> memory_;  // null: there are none
};

}  // namespace shoal::worker
