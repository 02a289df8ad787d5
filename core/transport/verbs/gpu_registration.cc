#include "core/transport/verbs/gpu_registration.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr std::array kRoutes = {GpuRoute::kDmaBufPcie, GpuRoute::kDmaBuf, GpuRoute::kPeerMemory};
// GPUs map their memory in pages of this size.
constexpr int64_t kGpuPage = int64_t{2} << 20;

int64_t HostPage() {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  return page;
}

// Returns the size at which ranges are cut, such that pieces begin at pages.
int64_t LargestPiece(int64_t max_region_bytes) {
  if (max_region_bytes <= 0) {
    return int64_t{1} << 62;
  }
  const int64_t page = max_region_bytes >= kGpuPage ? kGpuPage : HostPage();
  return std::max(page, max_region_bytes / page * page);
}

std::string_view Hint(GpuRoute route, int error) {
  if (route == GpuRoute::kPeerMemory) {
    return error == EFAULT ? " (is the module nvidia-peermem loaded?)" : "";
  }
  const bool unsupported = error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS;
  return unsupported ? " (device, its driver or the kernel know no dma-buf)" : "";
}

}  // namespace

std::string_view Name(GpuRoute route) {
  switch (route) {
    case GpuRoute::kDmaBufPcie:
      return "dma-buf over PCIe";
    case GpuRoute::kDmaBuf:
      return "dma-buf";
    case GpuRoute::kPeerMemory:
      return "peer memory";
    case GpuRoute::kNone:
      return "no way";
  }
  return "";
}

bool GpuRegistration::reachable() const {
  return std::ranges::any_of(pieces, [](const auto& of_device) { return !of_device.empty(); });
}

// A range being registered, with the driver's exports of it, made once for all devices.
struct GpuRegistrar::Range {
  struct Export {
    absl::StatusOr<UniqueFd> fd;
    bool tried = false;
  };
  uintptr_t begin = 0;
  int64_t bytes = 0;
  int access = 0;
  uintptr_t page_begin = 0;
  int64_t page_bytes = 0;
  Export pcie{.fd = UniqueFd()};
  Export plain{.fd = UniqueFd()};
};

GpuRegistrar::GpuRegistrar(VerbsApi* api, GpuMemory* gpu, std::vector<Device> devices)
    : api_(api), gpu_(gpu), devices_(std::move(devices)), findings_(devices_.size()) {}

absl::StatusOr<GpuRegistration> GpuRegistrar::Register(void* address, int64_t bytes, int access) {
  SHOAL_ASSIGN_OR_RETURN(const std::optional<GpuAllocation> allocation, gpu_->Find(address));
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (!allocation.has_value()) {
    return InvalidArgument("{} is not GPU memory", address);
  }
  if (bytes <= 0 || begin < allocation->begin ||
      bytes > allocation->bytes - static_cast<int64_t>(begin - allocation->begin)) {
    return InvalidArgument("{} bytes at {} are not within one allocation of GPU {}", bytes, address,
                           allocation->gpu);
  }
  GpuRegistration registration{.gpu = allocation->gpu};
  registration.pieces.resize(devices_.size());
  const GpuDevice& gpu = gpu_->gpu(allocation->gpu);
  const bool written = (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != 0;
  absl::MutexLock lock(&mutex_);
  if (written && gpu.remote_writes == RemoteWrites::kCannotBeFlushed) {
    LogWarning("{} cannot say when it sees what devices wrote: its memory is not registered",
               gpu.name);
    statistics_.ranges[static_cast<size_t>(GpuRoute::kNone)] +=
        static_cast<int64_t>(devices_.size());
    return registration;
  }
  if (const absl::Status prepared = gpu_->Prepare(address); !prepared.ok()) {
    LogDebug("{}: {}", gpu.name, Message(prepared));  // memory mapped by hand does not support it
  }
  const auto page = static_cast<uintptr_t>(HostPage());
  Range range{.begin = begin, .bytes = bytes, .access = access};
  range.page_begin = begin / page * page;
  range.page_bytes =
      RoundUp(static_cast<int64_t>(begin - range.page_begin) + bytes, static_cast<int64_t>(page));
  for (size_t i = 0; i < devices_.size(); ++i) {
    registration.pieces[i] = RegisterAt(i, range);
  }
  return registration;
}

std::vector<GpuPiece> GpuRegistrar::RegisterAt(size_t device, Range& range) {
  std::optional<Finding>& known = findings_[device];
  const std::string& name = devices_[device].name;
  std::string reason;
  const auto attempt = [&](GpuRoute route) {
    mutex_.AssertHeld();
    auto pieces = Try(devices_[device], route, range);
    if (!pieces.ok()) {
      reason += fmt::format("{}{}: {}", reason.empty() ? "" : "; ", Name(route),
                            Message(pieces.status()));
      return std::vector<GpuPiece>();
    }
    ++statistics_.ranges[static_cast<size_t>(route)];
    return *std::move(pieces);
  };
  if (known.has_value() && known->route != GpuRoute::kNone) {
    if (auto pieces = attempt(known->route); !pieces.empty()) {
      return pieces;
    }
    ++statistics_.detours;
  }
  if (!known.has_value() || known->route != GpuRoute::kNone) {
    for (const GpuRoute route : kRoutes) {
      if (known.has_value() && known->route == route) {
        continue;  // tried
      }
      if (auto pieces = attempt(route); !pieces.empty()) {
        if (!known.has_value()) {
          LogInfo("{} reaches GPU memory by {}{}{}", name, Name(route), reason.empty() ? "" : "; ",
                  reason);
          known = Finding{.device = name, .route = route, .reason = reason};
        } else {
          LogWarning("{} reaches {} of GPU memory by {}, not {}: {}", name,
                     FormatBytes(range.bytes), Name(route), Name(known->route), reason);
        }
        return pieces;
      }
    }
    LogWarning("{} cannot reach {} of GPU memory, which is not registered: {}", name,
               FormatBytes(range.bytes), reason);
    if (!known.has_value()) {
      known = Finding{.device = name, .route = GpuRoute::kNone, .reason = reason};
    }
  }
  ++statistics_.ranges[static_cast<size_t>(GpuRoute::kNone)];
  return {};
}

absl::StatusOr<std::vector<GpuPiece>> GpuRegistrar::Try(const Device& device, GpuRoute route,
                                                        Range& range) {
  int fd = -1;
  if (route != GpuRoute::kPeerMemory) {
    const bool pcie = route == GpuRoute::kDmaBufPcie;
    Range::Export& exported = pcie ? range.pcie : range.plain;
    if (!std::exchange(exported.tried, true)) {
      exported.fd =
          gpu_->ExportDmaBuf(reinterpret_cast<const void*>(range.page_begin), range.page_bytes,
                             pcie ? DmaBufMapping::kPcie : DmaBufMapping::kDefault);
    }
    SHOAL_RETURN_IF_ERROR(exported.fd.status());
    fd = exported.fd->get();
  }
  return RegisterPieces(device, range, fd);
}

absl::StatusOr<std::vector<GpuPiece>> GpuRegistrar::RegisterPieces(const Device& device,
                                                                   const Range& range, int fd) {
  const int64_t largest = LargestPiece(device.max_region_bytes);
  std::vector<GpuPiece> pieces;
  for (int64_t offset = 0; offset < range.bytes;) {
    const uintptr_t begin = range.begin + static_cast<uintptr_t>(offset);
    // The first piece also ends at a GPU page, so that the others begin at one.
    const auto into_page =
        static_cast<int64_t>(begin % static_cast<uintptr_t>(std::min(largest, kGpuPage)));
    const int64_t bytes = std::min(largest - into_page, range.bytes - offset);
    errno = 0;
    ibv_mr* mr = fd >= 0 ? api_->RegDmabufMr(device.pd, begin - range.page_begin,
                                             static_cast<size_t>(bytes), begin, fd, range.access)
                         : api_->RegMr(device.pd, reinterpret_cast<void*>(begin),
                                       static_cast<size_t>(bytes), range.access);
    if (mr == nullptr) {
      const int error = errno;
      for (const GpuPiece& piece : pieces) {
        api_->DeregMr(piece.mr);
      }
      const GpuRoute route = fd >= 0 ? GpuRoute::kDmaBuf : GpuRoute::kPeerMemory;
      return ErrnoToStatus(
          error, fmt::format("{} of {} bytes{}", fd >= 0 ? "ibv_reg_dmabuf_mr" : "ibv_reg_mr",
                             bytes, Hint(route, error)));
    }
    pieces.push_back({.mr = mr, .offset = offset, .bytes = bytes});
    offset += bytes;
  }
  return pieces;
}

void GpuRegistrar::Deregister(GpuRegistration& registration) {
  for (size_t i = 0; i < registration.pieces.size(); ++i) {
    for (const GpuPiece& piece : registration.pieces[i]) {
      if (const int error = api_->DeregMr(piece.mr); error != 0) {
        LogWarning("{}: GPU memory stays registered: {}", devices_[i].name, std::strerror(error));
      }
    }
    registration.pieces[i].clear();
  }
}

absl::Status GpuRegistrar::AwaitVisible(const GpuRegistration& registration) {
  if (!registration.reachable() ||
      gpu_->gpu(registration.gpu).remote_writes == RemoteWrites::kVisible) {
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&mutex_);
    ++statistics_.flushes;
  }
  return gpu_->FlushRemoteWrites(registration.gpu);
}

std::vector<GpuRegistrar::Finding> GpuRegistrar::findings() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Finding> findings;
  for (const std::optional<Finding>& finding : findings_) {
    if (finding.has_value()) {
      findings.push_back(*finding);
    }
  }
  return findings;
}

GpuRegistrar::Statistics GpuRegistrar::statistics() const {
  absl::MutexLock lock(&mutex_);
  return statistics_;
}

DmaBufSupport ProbeDmaBuf(VerbsApi& api, ibv_pd* pd) {
  errno = 0;
  ibv_mr* mr =
      api.RegDmabufMr(pd, 0, static_cast<size_t>(HostPage()), 0, /*fd=*/-1, IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (mr != nullptr) {  // a device that does not check
    api.DeregMr(mr);
    return DmaBufSupport::kUnknown;
  }
  switch (error) {
    case EBADF:
      return DmaBufSupport::kYes;
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case ENOSYS:
      return DmaBufSupport::kNo;
    default:
      return DmaBufSupport::kUnknown;
  }
}

}  // namespace shoal::transport
