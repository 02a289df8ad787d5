// GPU memory as transports need it: a small seam over the GPU's driver. Only transport/cuda sees
// CUDA, a program without it still builds and runs, and tests supply a GPU of their own.
//
// Visibility. A device that writes GPU memory over PCIe (the target of a remote write, or the
// initiator of a remote read) writes to two targets: the payload goes to the GPU; the header,
// doorbell or completion that announces it goes to host memory. Neither a whole header
// (core/transport/data_layout.h) nor a completion proves that the payload is visible to the GPU or
// to a copy out of its memory. So before anything reads such a payload (a server adding up a slot,
// a worker computing with fetched weights), call FlushRemoteWrites of that GPU after having seen
// the header or completion. One flush covers everything that arrived before it: call it once per
// batch.
//
// On machines where the GPU is also reached past PCIe (NVLink-C2C) the driver reports that no flush
// is needed. That holds within one path only: there, all of a region uses the one mapping it was
// registered with, and its header must lie in the same region.
//
// Shares. A process may let others on its host open a range of its GPU's memory, which their GPUs'
// copies then read and write.
// - The owner keeps the memory until all have closed it: use of memory freed earlier is undefined.
// - Others reach the whole allocation that contains the range, and may write it, so it must hold
//   nothing else. (Small allocations share a driver page of 2 MiB.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file.h"

namespace shoal::transport {

// When the GPU sees what other devices wrote to its memory.
enum class RemoteWrites {
  kVisible,         // by itself, in order
  kFlushed,         // after FlushRemoteWrites
  kCannotBeFlushed  // unknown: other devices must not write such memory
};

struct GpuDevice {
  std::string name;
  std::string pci_address;         // "0000:1b:00.0"
  std::array<char, 16> uuid = {};  // zeros if unknown
  bool dma_buf = false;            // the driver says that its memory can be exported
  RemoteWrites remote_writes = RemoteWrites::kCannotBeFlushed;
};

struct GpuAllocation {
  int gpu = 0;
  uintptr_t begin = 0;
  int64_t bytes = 0;
};

// One copy of a batch.
struct GpuCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// A range of a GPU's memory, described so that another process on this host can open it.
struct GpuShare {
  std::array<char, 16> gpu = {};  // the UUID of the GPU that holds it
  // the driver's name for the allocation that contains the range
  std::array<char, 64> allocation = {};
  int64_t offset = 0;  // of the range within the allocation
  int64_t bytes = 0;
};

struct OpenedShare {
  std::span<std::byte> memory;      // the range, as this process addresses it
  std::byte* allocation = nullptr;  // what was opened
};

// "GPU-01234567-89ab-cdef-0123-456789abcdef", as tools print it; empty for zeros (unknown).
std::string GpuName(const std::array<char, 16>& uuid);

// How other devices reach an export: over the PCIe window, where there are several ways, or as the
// driver chooses. Some machines support only one of the two.
enum class DmaBufMapping { kPcie, kDefault };

// Thread-safe.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;

  virtual int gpus() const = 0;
  virtual const GpuDevice& gpu(int index) const = 0;

  // Returns the allocation that contains the address; nullopt for host memory. InvalidArgument for
  // memory that migrates between the two.
  virtual absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) = 0;
  // Call before other devices get access: afterwards the driver's copies into and out of the memory
  // return only when done.
  virtual absl::Status Prepare(const void* address) = 0;
  // Both ends must be multiples of the page size and within one allocation. Unimplemented if the
  // driver does not support it or this mapping.
  virtual absl::StatusOr<UniqueFd> ExportDmaBuf(const void* address, int64_t bytes,
                                                DmaBufMapping mapping) = 0;
  // Shares a range within one allocation. Unimplemented if it cannot be shared.
  virtual absl::StatusOr<GpuShare> Share(std::span<const std::byte> memory) = 0;
  // Opens a range that another process shares, until Close. Trusts nothing in `share`.
  // FailedPrecondition if this process does not see its GPU, NotFound if the allocation does not
  // exist (any more), InvalidArgument if the range is not within it.
  virtual absl::StatusOr<OpenedShare> Open(const GpuShare& share) = 0;
  virtual void Close(const OpenedShare& opened) = 0;
  // When it returns, that GPU sees everything that has arrived from other devices. Costs nothing
  // where no flush is needed.
  virtual absl::Status FlushRemoteWrites(int gpu) = 0;

  // Copies between memory of one GPU, the same for all, and memory of this process or of a GPU that
  // it sees, in any direction, with the GPU's copy engines. Returns when all are done; that wait,
  // and finding the GPU, cost tens of microseconds per call. No copy may cross the end of a pinned
  // range. Several threads may call it concurrently.
  virtual absl::Status Copy(std::span<const GpuCopy> copies) = 0;
  // Whether Pin accepts memory that this process may only read. Most GPUs on a PCIe bus do not.
  virtual bool PinsReadOnly() const = 0;
  // Lets copies go straight into and out of host memory of this process, at the bus's full rate.
  // Without it they go through a buffer of the driver's at a fraction of that rate, and block the
  // caller. `writable`: whether this process may write the memory. Takes as long as copying that
  // memory. Unimplemented where the machine cannot; copies still work.
  virtual absl::Status Pin(std::span<const std::byte> memory, bool writable) = 0;
  // Undoes Pin. Call it before the memory is freed.
  virtual void Unpin(std::span<const std::byte> memory) = 0;
};

}  // namespace shoal::transport
