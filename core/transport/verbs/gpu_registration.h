// How GPU memory is made known to RDMA devices, by the first of these that works:
//   1. dma-buf: the GPU's driver exports the range, the device maps it. Needs no module of the
//      vendor's, but kernel, both drivers and the device must know how. Exports over the PCIe
//      window come first: machines whose GPU is also reached another way need it, others refuse it
//      and take the default one.
//   2. Peer memory: the GPU's address is registered like any other, which the module
//      nvidia-peermem makes work.
// Where neither works nothing is registered, and the caller is told: whoever wanted to moves the
// bytes through pinned host memory itself. What works is found out with the first memory, for each
// RDMA device, said in the log, and then kept to. Memory that cannot be registered that way all the
// same (of another kind, say) is tried the other ways by itself.
//
// Visibility (core/transport/gpu_memory.h says why): a header or doorbell in host memory that names
// a payload in GPU memory says that it has arrived, not that the GPU sees it. AwaitVisible is the
// point to call between having validated a slot's header, or taken a read's completion, and letting
// anything read the payload; once for any number of slots. Memory of a GPU whose writes can neither
// be ordered nor flushed is not registered for writing, whatever could be.
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

// A range as one RDMA device knows it, cut where the device's largest region ends. Peers and the
// own queue address it by the GPU's addresses.
struct GpuPiece {
  ibv_mr* mr = nullptr;
  int64_t offset = 0;  // into the range
  int64_t bytes = 0;
};

struct GpuRegistration {
  int gpu = 0;
  // By device, in the registrar's order; empty where the device cannot reach the range.
  std::vector<std::vector<GpuPiece>> pieces;
  bool reachable() const;  // by one device at least
};

class GpuRegistrar {
 public:
  struct Device {
    std::string name;
    ibv_pd* pd = nullptr;
    int64_t max_region_bytes = 0;
  };
  // How a device reaches GPU memory, and why not by the ways before it.
  struct Finding {
    std::string device;
    GpuRoute route = GpuRoute::kNone;
    std::string reason;
  };
  struct Statistics {
    // Once for each device: ranges by the route that was taken; kNone are those that were refused.
    std::array<int64_t, 4> ranges{};
    int64_t detours = 0;  // ranges that went another way than those before
    int64_t flushes = 0;
    int64_t by(GpuRoute route) const { return ranges[static_cast<size_t>(route)]; }
  };

  // All must outlive it. Every registration is given back before protection domains go.
  GpuRegistrar(VerbsApi* api, GpuMemory* gpu, std::vector<Device> devices);

  // `access` as of RegMr. InvalidArgument for what is not within one allocation of GPU memory; what
  // cannot be registered is no error but not reachable().
  absl::StatusOr<GpuRegistration> Register(void* address, int64_t bytes, int access)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Deregister(GpuRegistration& registration);

  absl::Status AwaitVisible(const GpuRegistration& registration) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of those devices that were tried.
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

// Whether device and kernel can register a dma-buf at all, found out with an invalid file.
DmaBufSupport ProbeDmaBuf(VerbsApi& api, ibv_pd* pd);

}  // namespace shoal::transport
