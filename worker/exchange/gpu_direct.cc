#include "worker/exchange/gpu_direct.h"

#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/data_layout.h"

namespace shoal::worker {
namespace {

// Allocates memory aligned for transports.
absl::StatusOr<std::shared_ptr<std::byte>> Allocate(Memory& memory, int64_t bytes) {
  constexpr int64_t kAlignment = transport::kBufferAlignment;
  SHOAL_ASSIGN_OR_RETURN(Buffer buffer, memory.Allocate(bytes + kAlignment));
  const auto owner = std::make_shared<Buffer>(std::move(buffer));
  const auto address = reinterpret_cast<int64_t>(owner->data());
  return std::shared_ptr<std::byte>(owner,
                                    owner->data() + (RoundUp(address, kAlignment) - address));
}

// Why the transport cannot use memory of the device, or OK.
absl::Status Reaches(transport::Transport& transport, const Buffer& sample) {
  return transport
      .Register({sample.data(), static_cast<size_t>(sample.bytes())}, transport::Access::kLocal)
      .status();
}

void Append(std::string& list, std::string_view text) {
  list += list.empty() ? "" : "; ";
  list += text;
}

// Whether reading weights into device memory is no slower than through the host's.
bool ReadsAtFullRate(const std::vector<transport::Transport*>& transports, std::string& why) {
  bool full = true;
  for (const transport::Transport* transport : transports) {
    if (const std::string& slow = transport->capabilities().slow_gpu_reads; !slow.empty()) {
      Append(why, fmt::format("{}: {}", transport->name(), slow));
      full = false;
    }
  }
  return full;
}

}  // namespace

absl::StatusOr<GpuDirect> ChooseGpuDirect(const GpuDirectRequest& request,
                                          const std::vector<transport::Transport*>& transports) {
  GpuDirect direct{.view_memory = PinnedAllocator(request.pinned), .transports = transports};
  if (!request.transports_reach) {
    direct.why = "nothing tells transports how to reach the device's memory";
    return direct;
  }
  const bool same_type = request.wire_type == request.compute_type && request.converts.empty();
  const bool push = request.gradient_type == DType::kF32;
  if (!same_type) {
    Append(direct.why,
           fmt::format("weights are converted on the way ({})",
                       request.converts.empty() ? "service.wire_type" : request.converts));
  }
  if (!push) {
    Append(direct.why, "gradients are converted on the way (service.gradient_type)");
  }
  if (!same_type && !push) {
    return direct;
  }
  SHOAL_ASSIGN_OR_RETURN(const Buffer sample,
                         request.device->Allocate(transport::kBufferAlignment));
  std::vector<transport::Transport*> reaching;
  for (transport::Transport* transport : transports) {
    if (const absl::Status status = Reaches(*transport, sample); status.ok()) {
      reaching.push_back(transport);
    } else {
      Append(direct.why, fmt::format("{}: {}", transport->name(), Message(status)));
    }
  }
  if (reaching.size() != transports.size() && (!request.local || reaching.empty())) {
    return direct;
  }
  const bool get = same_type && ReadsAtFullRate(reaching, direct.why);
  if (!get && !push) {
    return direct;
  }
  direct.transports = std::move(reaching);
  direct.push = push;
  if (get) {
    direct.get = true;
    direct.view_memory = DeviceAllocator(request.device);
  }
  return direct;
}

client::BufferAllocator PinnedAllocator(Memory* host) {
  return [host](int64_t bytes) { return Allocate(*host, bytes); };
}

client::BufferAllocator DeviceAllocator(Device* device) {
  return [device](int64_t bytes) { return Allocate(*device, bytes); };
}

}  // namespace shoal::worker
