// The runtime's functions by which processes share GPU memory. Only within one process: another's
// shares are refused as CUDA refuses what it cannot map.
#include <unistd.h>

#include <cstring>

#include "core/gpu/fake_cuda/machine.h"

namespace {

using shoal::gpu::emulation::AddressSpace;
using shoal::gpu::emulation::Machine;
using shoal::gpu::emulation::Noted;
using shoal::gpu::emulation::Place;

struct Handle {
  uint64_t magic = 0;
  int64_t process = 0;
  uint64_t number = 0;  // of the allocation
};
constexpr uint64_t kMagic = 0x5348415245474D45;
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

namespace shoal::gpu {

std::optional<EmulatedAllocation> FindAllocation(const void* address) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  bool torn = false;
  std::byte* begin = nullptr;
  const AddressSpace::Range* const range = machine.memory->Find(address, 1, torn, &begin);
  if (range == nullptr || range->place != Place::kDevice) {
    return std::nullopt;
  }
  return EmulatedAllocation{.device = range->device, .begin = begin, .bytes = range->bytes};
}

}  // namespace shoal::gpu

extern "C" {

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaIpcGetMemHandle"); error != cudaSuccess) {
    return Noted(error);
  }
  const AddressSpace::Range* const range = machine.memory->FindBegin(data);
  if (range == nullptr || range->place != Place::kDevice) {
    return Noted(cudaErrorInvalidValue);
  }
  const Handle named = {.magic = kMagic, .process = getpid(), .number = range->number};
  *handle = {};
  std::memcpy(handle->reserved, &named, sizeof(named));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned flags) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaIpcOpenMemHandle"); error != cudaSuccess) {
    return Noted(error);
  }
  Handle named;
  std::memcpy(&named, handle.reserved, sizeof(named));
  if (flags != cudaIpcMemLazyEnablePeerAccess) {
    return Noted(cudaErrorInvalidValue);
  }
  if (named.magic == kMagic && named.process != getpid()) {
    return Noted(cudaErrorMapBufferObjectFailed);
  }
  *data = named.magic == kMagic ? machine.memory->OpenHandle(named.number) : nullptr;
  return Noted(*data == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void* data) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaIpcCloseMemHandle"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(machine.memory->CloseHandle(data) ? cudaSuccess : cudaErrorInvalidValue);
}

}  // extern "C"
