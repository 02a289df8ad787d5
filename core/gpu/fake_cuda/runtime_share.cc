// The runtime's functions by which processes share GPU memory. Only within one process: another's
// shares are refused as CUDA refuses what it cannot map.
#include <unistd.h>

#include <cstring>

#include "core/gpu/fake_cuda/fake_gpus.h"

namespace {

using shoal::gpu::fake_cuda::AddressSpace;
using shoal::gpu::fake_cuda::FakeGpus;
using shoal::gpu::fake_cuda::Noted;
using shoal::gpu::fake_cuda::Place;

struct Handle {
  uint64_t magic = 0;
  int64_t process = 0;
  uint64_t number = 0;  // of the allocation
};
constexpr uint64_t kMagic = 0x5348415245474D45;
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

namespace shoal::gpu {

std::optional<FakeAllocation> FindAllocation(const void* address) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  bool torn = false;
  std::byte* begin = nullptr;
  const AddressSpace::Range* const range = fake.memory->Find(address, 1, torn, &begin);
  if (range == nullptr || range->place != Place::kDevice) {
    return std::nullopt;
  }
  return FakeAllocation{.device = range->device, .begin = begin, .bytes = range->bytes};
}

}  // namespace shoal::gpu

extern "C" {

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaIpcGetMemHandle"); error != cudaSuccess) {
    return Noted(error);
  }
  const AddressSpace::Range* const range = fake.memory->FindBegin(data);
  if (range == nullptr || range->place != Place::kDevice) {
    return Noted(cudaErrorInvalidValue);
  }
  const Handle named = {.magic = kMagic, .process = getpid(), .number = range->number};
  *handle = {};
  std::memcpy(handle->reserved, &named, sizeof(named));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned flags) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaIpcOpenMemHandle"); error != cudaSuccess) {
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
  *data = named.magic == kMagic ? fake.memory->OpenHandle(named.number) : nullptr;
  return Noted(*data == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void* data) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaIpcCloseMemHandle"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(fake.memory->CloseHandle(data) ? cudaSuccess : cudaErrorInvalidValue);
}

}  // extern "C"
