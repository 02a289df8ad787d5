#include "worker/pipeline/links/link_regions.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/shared_region.h"

namespace shoal::worker {
namespace {

using transport::Access;
using transport::Region;

// Alignment of regions that transports allocate.
constexpr int64_t kPageBytes = 4096;

absl::StatusOr<std::shared_ptr<Region>> HostRegion(const LinkRegions::Options& options,
                                                   int64_t bytes, Access access, Buffer& memory) {
  if (options.host == nullptr ||
      (access != Access::kLocal && !options.transport->capabilities().exposes_any_memory)) {
    return options.transport->Allocate(bytes, access);
  }
  bytes = RoundUp(bytes, kPageBytes);
  SHOAL_ASSIGN_OR_RETURN(memory, options.host->Allocate(bytes + kPageBytes));
  const auto address = reinterpret_cast<int64_t>(memory.data());
  const std::span<std::byte> pages(memory.data() + (RoundUp(address, kPageBytes) - address),
                                   static_cast<size_t>(bytes));
  return options.transport->Register(pages, access);
}

absl::StatusOr<std::shared_ptr<Region>> DeviceRegion(const LinkRegions::Options& options,
                                                     int64_t bytes, Access access, Buffer& memory) {
  if (access == Access::kLocal) {
    SHOAL_ASSIGN_OR_RETURN(memory, options.device->Allocate(bytes));
    return options.transport->Register({memory.data(), static_cast<size_t>(bytes)}, access);
  }
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> shared,
                         options.lent->Allocate(*options.device, bytes));
  return transport::ExposeShared(*options.transport, std::move(shared), static_cast<size_t>(bytes),
                                 access);
}

}  // namespace

absl::StatusOr<LinkRegions> LinkRegions::Create(const Options& options) {
  LinkRegions regions;
  regions.slot_capacity_ = options.slots;
  regions.buffer_capacity_ = options.buffers;
  const auto take = [&](const LinkCapacity& room, Access access, Buffer& memory, auto& pieces,
                        auto& headers) -> absl::Status {
    const int64_t bytes = std::max<int64_t>(room.bytes, 1);
    if (options.device == nullptr) {
      SHOAL_ASSIGN_OR_RETURN(pieces, HostRegion(options, bytes, access, memory));
      return absl::OkStatus();
    }
    SHOAL_ASSIGN_OR_RETURN(pieces, DeviceRegion(options, bytes, access, memory));
    SHOAL_ASSIGN_OR_RETURN(
        headers, options.transport->Allocate(
                     std::max<int64_t>(room.pieces, 1) * kStageMessageHeaderBytes, access));
    return absl::OkStatus();
  };
  SHOAL_RETURN_IF_ERROR(take(options.slots, Access::kRemoteWrite, regions.slot_memory_,
                             regions.slots_, regions.slot_headers_));
  SHOAL_RETURN_IF_ERROR(take(options.buffers, Access::kLocal, regions.buffer_memory_,
                             regions.buffers_, regions.buffer_headers_));
  return regions;
}

std::vector<std::shared_ptr<transport::Region>> LinkRegions::exposed() const {
  std::vector<std::shared_ptr<transport::Region>> exposed = {slots_};
  if (slot_headers_ != nullptr) {
    exposed.push_back(slot_headers_);
  }
  return exposed;
}

bool LinkRegions::HasCapacityFor(const LinkCapacity& slots, const LinkCapacity& buffers) const {
  const bool apart = slot_headers_ != nullptr;
  const auto fits = [apart](const LinkCapacity& needed, const LinkCapacity& room) {
    return needed.bytes <= room.bytes && (!apart || needed.pieces <= room.pieces);
  };
  return fits(slots, slot_capacity_) && fits(buffers, buffer_capacity_);
}

}  // namespace shoal::worker
