#include "worker/exchange/client_memory.h"

#include <memory>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/data_layout.h"

namespace shoal::worker {
namespace {

// Aligned as transports want it.
absl::StatusOr<std::shared_ptr<std::byte>> Allocate(Memory& memory, int64_t bytes) {
  constexpr int64_t kAlignment = transport::kBufferAlignment;
  SHOAL_ASSIGN_OR_RETURN(Buffer buffer, memory.Allocate(bytes + kAlignment));
  const auto owner = std::make_shared<Buffer>(std::move(buffer));
  const auto address = reinterpret_cast<int64_t>(owner->data());
  return std::shared_ptr<std::byte>(owner,
                                    owner->data() + (RoundUp(address, kAlignment) - address));
}

}  // namespace

client::BufferAllocator PinnedAllocator(Memory* host) {
  return [host](int64_t bytes) { return Allocate(*host, bytes); };
}

client::BufferAllocator DeviceAllocator(Device* device) {
  return [device](int64_t bytes) { return Allocate(*device, bytes); };
}

}  // namespace shoal::worker
