#include "worker/trainer/pinned_memory.h"

#include <memory>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"
#include "transport/data_layout.h"

namespace shoal::worker {

client::HostAllocator AllocatorOf(Memory* host) {
  return [host](int64_t bytes) -> absl::StatusOr<std::shared_ptr<std::byte>> {
    constexpr int64_t kAlignment = transport::kBufferAlignment;
    SHOAL_ASSIGN_OR_RETURN(Buffer buffer, host->Allocate(bytes + kAlignment));
    const auto owner = std::make_shared<Buffer>(std::move(buffer));
    const auto address = reinterpret_cast<int64_t>(owner->data());
    return std::shared_ptr<std::byte>(owner,
                                      owner->data() + (RoundUp(address, kAlignment) - address));
  };
}

}  // namespace shoal::worker
