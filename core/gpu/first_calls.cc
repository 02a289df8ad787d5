#include "core/gpu/first_calls.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/bytes.h"
#include "core/base/memory/host_memory.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::gpu {
namespace {

constexpr size_t kBytes = 4 * kMiB;

std::string NameOf(cudaError_t error) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // else the next call would report it
  }
  return cudaGetErrorName(error);
}

// Pins shared memory as a worker maps a server's, and unpins it.
std::string PinShared(int protection, unsigned flags) {
  const int fd = ::memfd_create("first calls", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, kBytes) != 0) {
    return "no shared memory";
  }
  void* const memory = ::mmap(nullptr, kBytes, protection, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) {
    return "no mapping";
  }
  const cudaError_t error = cudaHostRegister(memory, kBytes, cudaHostRegisterPortable | flags);
  if (error == cudaSuccess) {
    (void)cudaHostUnregister(memory);
  }
  ::munmap(memory, kBytes);
  return NameOf(error);
}

// The time from the later of two events to the earlier. Without a deadline: called by checks of a
// GPU, whose processes have one.
std::string ElapsedBackwards() {
  cudaEvent_t events[2] = {};
  float milliseconds = 0;
  cudaError_t error = cudaSuccess;
  for (cudaEvent_t& event : events) {
    error = error == cudaSuccess ? cudaEventCreate(&event) : error;
    error = error == cudaSuccess ? cudaEventRecord(event, nullptr) : error;
    error = error == cudaSuccess ? cudaEventSynchronize(event) : error;
  }
  error = error == cudaSuccess ? cudaEventElapsedTime(&milliseconds, events[1], events[0]) : error;
  for (cudaEvent_t event : events) {
    if (event != nullptr) {
      (void)cudaEventDestroy(event);
    }
  }
  return error == cudaSuccess ? fmt::format("{} ms", milliseconds) : NameOf(error);
}

std::string ReadOnlyPinning() {
  int value = 0;
  const cudaError_t error =
      cudaDeviceGetAttribute(&value, cudaDevAttrHostRegisterReadOnlySupported, 0);
  return error == cudaSuccess ? fmt::format("{}", value) : NameOf(error);
}

std::string Memory() {
  const absl::StatusOr<HostMemory> memory = ReadHostMemory();
  return memory.ok() ? fmt::format("{}, {} of it available", FormatBytes(memory->total),
                                   FormatBytes(memory->available))
                     : std::string(Message(memory.status()));
}

}  // namespace

std::vector<FirstCall> TryFirstCalls() {
  (void)cudaSetDevice(0);
  return {
      {"cudaDevAttrHostRegisterReadOnlySupported", ReadOnlyPinning(),
       "0: weights over shm come directly in jobs that say train.device: cuda alone"},
      {"pinning shared memory mapped for reading", PinShared(PROT_READ, 0), "an error is expected"},
      {"the same as read-only", PinShared(PROT_READ, cudaHostRegisterReadOnly),
       "an error where the attribute is 0"},
      {"pinning shared memory mapped for writing", PinShared(PROT_READ | PROT_WRITE, 0),
       "must succeed for direct gets and pushes over shm"},
      {"cudaEventElapsedTime backwards", ElapsedBackwards(), "nothing depends on it"},
      {"memory of the machine", Memory(), "where it is too little, set SHOAL_HOST_MEMORY"},
  };
}

}  // namespace shoal::gpu
