// The runtime's functions for GPUs, errors and memory.
#include <cstring>

#include "core/base/bytes.h"
#include "core/base/memory/memory_map.h"
#include "core/gpu/fake_cuda/fake_gpus.h"
#include "fmt/format.h"

namespace shoal::gpu {

using fake_cuda::AddressSpace;
using fake_cuda::FakeGpus;

void SetFakeGpus(const FakeGpuOptions& gpus) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  fake.Set(gpus);
}

void FailCall(std::string_view function, int64_t number, cudaError_t error) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  fake.FailCall(function, number, error);
}

void FailWork(int64_t number, cudaError_t error) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  fake.FailWork(number, error);
}

FakeGpuCounters Counters() {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  FakeGpuCounters counters = fake.counters;
  counters.events = static_cast<int64_t>(fake.events.size());
  counters.host_bytes = fake.memory->host_bytes();
  for (int device = 0; device < fake.gpus.count; ++device) {
    counters.allocated_bytes += fake.memory->allocated_bytes(device);
  }
  return counters;
}

}  // namespace shoal::gpu

namespace {

using shoal::gpu::fake_cuda::AddressSpace;
using shoal::gpu::fake_cuda::CurrentDevice;
using shoal::gpu::fake_cuda::FakeGpus;
using shoal::gpu::fake_cuda::LastError;
using shoal::gpu::fake_cuda::Noted;
using shoal::gpu::fake_cuda::Place;

constexpr int kDriverVersion = 13000;
constexpr int kPciBusOfFirst = 0x41;

bool IsDevice(const FakeGpus& fake, int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  return device >= 0 && device < fake.gpus.count;
}

// Once at work, a GPU that has failed reports it from here on.
bool IsSticky(cudaError_t error) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  return error != cudaSuccess && fake.sticky() == error;
}

void CheckGivenBack(FakeGpus& fake, const void* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  if (const AddressSpace::Range* const range = fake.memory->FindBegin(data); range != nullptr) {
    fake.CheckUnused({.begin = static_cast<const std::byte*>(data), .bytes = range->bytes});
  }
}

cudaError_t AllocateHost(void** data, size_t bytes, unsigned flags) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaHostAlloc"); error != cudaSuccess) {
    return error;
  }
  if (bytes == 0) {
    *data = nullptr;
    return cudaSuccess;
  }
  *data =
      fake.memory->Allocate(Place::kPinned, CurrentDevice(), static_cast<int64_t>(bytes), flags);
  if (*data == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  ++fake.counters.host_allocations;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  *count = 0;
  if (const cudaError_t error = fake.Begin("cudaGetDeviceCount"); error != cudaSuccess) {
    return Noted(error);
  }
  *count = fake.gpus.count;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaSetDevice"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!IsDevice(fake, device)) {
    return Noted(cudaErrorInvalidDevice);
  }
  CurrentDevice() = device;
  return Noted(fake.sticky());
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaGetDevice"); error != cudaSuccess) {
    return Noted(error);
  }
  *device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaGetDeviceProperties"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!IsDevice(fake, device)) {
    return Noted(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::strncpy(properties->name, "Fake GPU", sizeof(properties->name) - 1);
  properties->totalGlobalMem = static_cast<size_t>(fake.gpus.memory_bytes);
  properties->major = fake.gpus.capability / 10;
  properties->minor = fake.gpus.capability % 10;
  properties->multiProcessorCount = fake.gpus.multiprocessors;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = static_cast<size_t>(fake.gpus.shared_bytes);
  properties->sharedMemPerMultiprocessor = static_cast<size_t>(fake.gpus.shared_bytes) + 1024;
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->asyncEngineCount = 2;
  properties->l2CacheSize = 50 << 20;
  properties->pciBusID = kPciBusOfFirst + device;
  std::memcpy(properties->uuid.bytes, "fake GPU", 8);
  properties->uuid.bytes[15] = static_cast<char>(device);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaDeviceGetAttribute"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!IsDevice(fake, device)) {
    return Noted(cudaErrorInvalidDevice);
  }
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = fake.gpus.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(fake.gpus.shared_bytes);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 << 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = fake.gpus.capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = fake.gpus.capability % 10;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      return cudaSuccess;
    case cudaDevAttrHostRegisterReadOnlySupported:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      return cudaSuccess;
    default:
      return Noted(cudaErrorInvalidValue);
  }
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* address, int bytes, int device) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaDeviceGetPCIBusId"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!IsDevice(fake, device)) {
    return Noted(cudaErrorInvalidDevice);
  }
  const std::string text = fmt::format("0000:{:02X}:00.0", kPciBusOfFirst + device);
  if (bytes <= static_cast<int>(text.size())) {
    return Noted(cudaErrorInvalidValue);
  }
  std::memcpy(address, text.c_str(), text.size() + 1);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  *version = fake.gpus.driver ? kDriverVersion : 0;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaDeviceSynchronize"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(fake.RunDevice(CurrentDevice()));
}

cudaError_t CUDARTAPI cudaGetLastError() {
  const cudaError_t error = LastError();
  if (!IsSticky(error)) {
    LastError() = cudaSuccess;
  }
  return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError() { return LastError(); }

#define SHOAL_ERRORS(X)                                                                            \
  X(cudaSuccess, "no error")                                                                       \
  X(cudaErrorInvalidValue, "invalid argument")                                                     \
  X(cudaErrorMemoryAllocation, "out of memory")                                                    \
  X(cudaErrorInitializationError, "initialization error")                                          \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                               \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                              \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                     \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")   \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                       \
  X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")              \
  X(cudaErrorNotReady, "device not ready")                                                         \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                           \
  X(cudaErrorMisalignedAddress, "misaligned address")                                              \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                          \
  X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                             \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                      \
  X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                              \
  X(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed")                             \
  X(cudaErrorHostMemoryAlreadyRegistered,                                                          \
    "part or all of the requested memory range is already mapped")                                 \
  X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region") \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")   \
  X(cudaErrorNotSupported, "operation not supported")                                              \
  X(cudaErrorSystemDriverMismatch,                                                                 \
    "system has unsupported display driver / cuda driver combination")                             \
  X(cudaErrorUnknown, "unknown error")

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define SHOAL_ERROR_NAME(name, text) \
  case name:                         \
    return #name;
    SHOAL_ERRORS(SHOAL_ERROR_NAME)
#undef SHOAL_ERROR_NAME
    default:
      return "unrecognized error code";
  }
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define SHOAL_ERROR_TEXT(name, text) \
  case name:                         \
    return text;
    SHOAL_ERRORS(SHOAL_ERROR_TEXT)
#undef SHOAL_ERROR_TEXT
    default:
      return "unrecognized error code";
  }
}
#undef SHOAL_ERRORS

cudaError_t CUDARTAPI cudaMalloc(void** data, size_t bytes) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaMalloc"); error != cudaSuccess) {
    return Noted(error);
  }
  *data = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  const int device = CurrentDevice();
  const int64_t left = fake.gpus.memory_bytes - fake.memory->allocated_bytes(device);
  if (static_cast<int64_t>(bytes) > left) {
    return Noted(cudaErrorMemoryAllocation);
  }
  *data = fake.memory->Allocate(Place::kDevice, device, static_cast<int64_t>(bytes), 0,
                                fake.gpus.runs != shoal::gpu::Runs::kNone);
  if (*data == nullptr) {
    return Noted(cudaErrorMemoryAllocation);
  }
  ++fake.counters.allocations;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFree(void* data) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaFree"); error != cudaSuccess) {
    return Noted(error);
  }
  if (data == nullptr) {
    return cudaSuccess;
  }
  // As in the runtime, which waits for all work of the GPU that owns the memory.
  const AddressSpace::Range* const range = fake.memory->FindBegin(data);
  fake.RunDevice(range == nullptr ? CurrentDevice() : range->device);
  if (!fake.memory->Free(data, Place::kDevice)) {
    fake.counters.frees_of_opened += range != nullptr && range->opened > 0 ? 1 : 0;
    return Noted(cudaErrorInvalidValue);
  }
  ++fake.counters.frees;
  return Noted(fake.sticky());
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free, size_t* total) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaMemGetInfo"); error != cudaSuccess) {
    return Noted(error);
  }
  *total = static_cast<size_t>(fake.gpus.memory_bytes);
  *free = *total - static_cast<size_t>(fake.memory->allocated_bytes(CurrentDevice()));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostAlloc(void** data, size_t bytes, unsigned flags) {
  return Noted(AllocateHost(data, bytes, flags));
}

cudaError_t CUDARTAPI cudaMallocHost(void** data, size_t bytes) {
  return Noted(AllocateHost(data, bytes, cudaHostAllocDefault));
}

cudaError_t CUDARTAPI cudaFreeHost(void* data) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaFreeHost"); error != cudaSuccess) {
    return Noted(error);
  }
  if (data == nullptr) {
    return cudaSuccess;
  }
  CheckGivenBack(fake, data);
  if (!fake.memory->Free(data, Place::kPinned)) {
    return Noted(cudaErrorInvalidValue);
  }
  ++fake.counters.host_frees;
  return Noted(fake.sticky());
}

cudaError_t CUDARTAPI cudaHostRegister(void* data, size_t bytes, unsigned flags) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaHostRegister"); error != cudaSuccess) {
    return Noted(error);
  }
  // As GPUs on a PCIe bus do: read-only memory cannot be pinned, neither as such nor otherwise.
  if ((flags & cudaHostRegisterReadOnly) != 0) {
    return Noted(cudaErrorNotSupported);
  }
  if (!shoal::MappedForWriting({static_cast<const std::byte*>(data), bytes})) {
    return Noted(cudaErrorInvalidValue);
  }
  bool torn = false;
  if (fake.memory->Find(data, static_cast<int64_t>(bytes), torn) != nullptr || torn) {
    return Noted(cudaErrorHostMemoryAlreadyRegistered);
  }
  fake.memory->Register(data, static_cast<int64_t>(bytes), flags);
  ++fake.counters.host_allocations;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostUnregister(void* data) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaHostUnregister"); error != cudaSuccess) {
    return Noted(error);
  }
  CheckGivenBack(fake, data);
  if (!fake.memory->Unregister(data)) {
    return Noted(cudaErrorHostMemoryNotRegistered);
  }
  ++fake.counters.host_frees;
  return Noted(fake.sticky());
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                               const void* pointer) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaPointerGetAttributes"); error != cudaSuccess) {
    return Noted(error);
  }
  bool torn = false;
  const AddressSpace::Range* range = fake.memory->Find(pointer, 1, torn);
  void* address = const_cast<void*>(pointer);
  *attributes = {};
  if (range == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = address;
    return cudaSuccess;
  }
  const bool on_device = range->place == Place::kDevice;
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = range->device;
  attributes->devicePointer = address;
  attributes->hostPointer = on_device ? nullptr : address;
  return cudaSuccess;
}

}  // extern "C"
