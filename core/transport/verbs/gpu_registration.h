// Registers GPU memory with RDMA devices, by the first of these ways that works:
// 1. dma-buf: the GPU's driver exports the range, the device maps it. Needs no vendor module, but
//    support in the kernel, both drivers and the device. Exports over the PCIe window are tried
//    first: machines whose GPU is also reached another way need it; others refuse it and take the
//    default mapping.
// 2. Peer memory: the GPU's address is registered like any other, which the module nvidia-peermem
//    makes work.
//
// Where neither works nothing is registered and the caller is told: it then moves the bytes through
// pinned host memory itself. The first memory shows, for each RDMA device, which way works; that
// way is logged and kept. Memory that it fails for all the same (of another kind, say) is tried the
// other ways on its own.
//
// Visibility (core/transport/gpu_memory.h says why): a header or doorbell in host memory that names
// a payload in GPU memory says that the payload has arrived, not that the GPU sees it. Call
// AwaitVisible after validating a slot's header, or taking a read's completion, and before anything
// reads the payload; once for any number of slots. Memory of a GPU whose writes can neither be
// ordered nor flushed is never registered for writing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/verbs/api.h"
#include "core/transport/verbs/rdma_census.h"

namespace shoal::transport {

enum class GpuRoute { kDmaBufPcie, kDmaBuf, kPeerMemory, kNone };
std::string_view Name(GpuRoute route);

// Part of a range as one RDMA device knows it, cut at the device's largest region. Peers and this
// side's queues address it by GPU addresses.
struct GpuPiece {
  ibv_mr* mr = nullptr;
  int64_t offset = 0;  // into the range
  int64_t bytes = 0;
};

struct GpuRegistration {
  int gpu = 0;
  // By device, in the registrar's order; empty if the device cannot reach the range.
  std::vector<std::vector<GpuPiece>> pieces;
  bool reachable() const;  // by at least one device
};

class GpuRegistrar {
 public:
  struct Device {
    std::string name;
    ibv_pd* pd = nullptr;
    int64_t max_region_bytes = 0;
  };
  // How a device reaches GPU memory, and why none of the earlier ways worked.
  struct Finding {
    std::string device;
    GpuRoute route = GpuRoute::kNone;
    std::string reason;
  };
  struct Statistics {
    // Ranges by the route taken, counted once per device; kNone: refused.
    std::array<int64_t, 4> ranges{};
    int64_t detours = 0;  // ranges that went another way than earlier ones
    int64_t flushes = 0;
    int64_t by(GpuRoute route) const { return ranges[static_cast<size_t>(route)]; }
  };

  // All arguments must outlive it. All registrations must be released before the protection
  // domains.
  GpuRegistrar(VerbsApi* api, GpuMemory* gpu, std::vector<Device> devices);

  // `access` as in RegMr. InvalidArgument for what is not within one allocation of GPU memory;
  // memory that cannot be registered is no error but is not reachable().
  absl::StatusOr<GpuRegistration> Register(void* address, int64_t bytes, int access)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Deregister(GpuRegistration& registration);

  absl::Status AwaitVisible(const GpuRegistration& registration) ABSL_LOCKS_EXCLUDED(mutex_);

  // For the devices tried so far.
  std::vector<Finding> findings() const ABSL_LOCKS_EXCLUDED(mutex_);
  Statistics statistics() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Range;
  absl::StatusOr<std::vector<GpuPiece>> Try(const Device& device, GpuRoute route, Range& range);
  absl::StatusOr<std::vector<GpuPiece>> RegisterPieces(const Device& device, const Range& range,
                                                       int fd);
  std::vector<GpuPiece> RegisterAt(size_t device, Range& range)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  VerbsApi* const api_;
  GpuMemory* const gpu_;
  const std::vector<Device> devices_;
  mutable absl::Mutex mutex_;
  std::vector<std::optional<Finding>> findings_ ABSL_GUARDED_BY(mutex_);  // by device
  Statistics statistics_ ABSL_GUARDED_BY(mutex_);
};

// Finds out, with an invalid file, whether device and kernel can register a dma-buf at all.
DmaBufSupport ProbeDmaBuf(VerbsApi& api, ibv_pd* pd);

}  // namespace shoal::transport
