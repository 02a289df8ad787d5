// GPU memory as transports need it: a small seam over the GPU's driver, so that nothing but
// transport/cuda sees CUDA, a program without it still builds and runs, and tests bring a GPU of
// their own.
//
// Visibility. A device that writes GPU memory over PCIe (the target of a remote write, or the one
// that fetched a remote read) writes payload and whatever announces it, a header, a doorbell or a
// completion in host memory, to two targets. Neither having seen the header whole
// (core/transport/data_layout.h) nor a completion of the queue proves that payload in GPU memory is
// visible to the GPU, nor to a copy out of it. Whoever is about to read such payload, a server
// before it adds a slot up as well as a worker before it computes with fetched weights, first calls
// FlushRemoteWrites of that GPU, after it has seen the header or completion. One flush covers all
// that had arrived before it, so it is called once per batch. On machines where the GPU is also
// reached past PCIe (NVLink-C2C) the driver reports that no flush is needed, which holds within one
// path alone: there, all of a region goes over the one mapping that it was registered with, and its
// header must lie in the same region.
//
// Shares. A process may let others of its host open a range of its GPU's memory, in which their
// GPUs' copies then read and write. Whoever shares keeps the memory until all have closed it: what
// is freed before is undefined where it is open. Others reach all of the allocation that the range
// is part of, and may write it: it holds nothing that they may not. (Small allocations share
// a driver's page of 2 MiB.)
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

// When the GPU sees what other devices wrote into its memory.
enum class RemoteWrites {
  kVisible,         // by itself, in order
  kFlushed,         // after FlushRemoteWrites
  kCannotBeFlushed  // no telling: such memory must not be written by other devices
};

struct GpuDevice {
  std::string name;
  std::string pci_address;         // "0000:1b:00.0"
  std::array<char, 16> uuid = {};  // zeros: not told
  bool dma_buf = false;            // says that its memory can be exported
  RemoteWrites remote_writes = RemoteWrites::kCannotBeFlushed;
};

struct GpuAllocation {
  int gpu = 0;
  uintptr_t begin = 0;
  int64_t bytes = 0;
};

// One of several that are done together.
struct GpuCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// A range of a GPU's memory by which another process of this host opens it.
struct GpuShare {
  std::array<char, 16> gpu = {};         // the UUID of the one that it lies on
  std::array<char, 64> allocation = {};  // the driver's name for what the range is part of
  int64_t offset = 0;                    // of the range therein
  int64_t bytes = 0;
};

struct OpenedShare {
  std::span<std::byte> memory;      // the range, as this process addresses it
  std::byte* allocation = nullptr;  // what was opened
};

// "GPU-01234567-89ab-cdef-0123-456789abcdef", as tools call it; empty where it is not told (zeros).
std::string GpuName(const std::array<char, 16>& uuid);

// How an export is reached by other devices: where there are several ways, over the PCIe window; or
// as the driver chooses. Some machines know but one of the two.
enum class DmaBufMapping { kPcie, kDefault };

// Thread-safe.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;

  virtual int gpus() const = 0;
  virtual const GpuDevice& gpu(int index) const = 0;

  // The allocation that the address lies in; nullopt for host memory. InvalidArgument for memory
  // that moves between the two.
  virtual absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) = 0;
  // Before memory is given to other devices: copies the driver makes into and out of it return only
  // when they are done.
  virtual absl::Status Prepare(const void* address) = 0;
  // Both ends must be multiples of the page size and within one allocation. Unimplemented where the
  // driver or the mapping does not have it.
  virtual absl::StatusOr<UniqueFd> ExportDmaBuf(const void* address, int64_t bytes,
                                                DmaBufMapping mapping) = 0;
  // A range within one allocation. Unimplemented where it cannot be shared.
  virtual absl::StatusOr<GpuShare> Share(std::span<const std::byte> memory) = 0;
  // A range that another process shares, until it is closed. Nothing in it is trusted.
  // FailedPrecondition where it lies on a GPU that this process does not see, NotFound where it is
  // not there (any more), InvalidArgument where it is not within its allocation.
  virtual absl::StatusOr<OpenedShare> Open(const GpuShare& share) = 0;
  virtual void Close(const OpenedShare& opened) = 0;
  // What has arrived from other devices is visible to that GPU when it returns. Free where nothing
  // has to be done.
  virtual absl::Status FlushRemoteWrites(int gpu) = 0;

  // Copies between memory of a GPU, the same in all of them, and memory of this process or of a GPU
  // that it sees, in any direction, by the GPU's copy engines; returns when all are done. That wait
  // and finding the GPU cost tens of microseconds, once for a call. None may cross the end of a
  // range that was pinned. Calls of several threads run beside each other.
  virtual absl::Status Copy(std::span<const GpuCopy> copies) = 0;
  // Whether Pin takes memory that this process may only read. Most GPUs on a PCIe bus do not.
  virtual bool PinsReadOnly() const = 0;
  // Lets copies go straight into and out of memory of this process, at the bus's full rate; without
  // it they go through a buffer of the driver's at a fraction of it, and keep the caller waiting.
  // `writable`: whether this process may write it. Takes the time of a copy of that memory.
  // Unimplemented where the machine cannot; a copy works all the same.
  virtual absl::Status Pin(std::span<const std::byte> memory, bool writable) = 0;
  // Of what Pin took, before that memory goes.
  virtual void Unpin(std::span<const std::byte> memory) = 0;
};

}  // namespace shoal::transport
