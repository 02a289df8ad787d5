#include "worker/trainer/landing.h"

#include <memory>
#include <utility>

#include "common/status.h"
#include "transport/data_layout.h"
#include "worker/trainer/client_memory.h"

namespace shoal::worker {
namespace {

// Why the transport does not take memory of the device, or OK.
absl::Status Reaches(transport::Transport& transport, const Buffer& sample) {
  return transport
      .Register({sample.data(), static_cast<size_t>(sample.bytes())}, transport::Access::kLocal)
      .status();
}

}  // namespace

absl::StatusOr<Landing> ChooseLanding(const LandingRequest& request,
                                      const std::vector<transport::Transport*>& transports) {
  Landing landing{.view_memory = PinnedAllocator(request.pinned), .transports = transports};
  if (!request.transports_reach) {
    landing.why = "nothing tells transports how to reach the device's memory";
    return landing;
  }
  if (!request.same_type) {
    landing.why = "weights are converted on the way (service.wire_type)";
    return landing;
  }
  SHOAL_ASSIGN_OR_RETURN(const Buffer sample,
                         request.device->Allocate(transport::kBufferAlignment));
  std::vector<transport::Transport*> reaching;
  for (transport::Transport* transport : transports) {
    if (const absl::Status status = Reaches(*transport, sample); status.ok()) {
      reaching.push_back(transport);
    } else {
      landing.why += fmt::format("{}{}: {}", landing.why.empty() ? "" : "; ", transport->name(),
                                 Message(status));
    }
  }
  if (reaching.size() == transports.size() || (request.local && !reaching.empty())) {
    landing.on_device = true;
    landing.view_memory = DeviceAllocator(request.device);
    landing.transports = std::move(reaching);
  }
  return landing;
}

}  // namespace shoal::worker
