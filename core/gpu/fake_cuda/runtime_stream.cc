// The runtime's functions for streams, events, copies and launches.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/gpu/fake_cuda/block.h"
#include "core/gpu/fake_cuda/launch.h"
#include "core/gpu/fake_cuda/machine.h"
#include "core/gpu/launch_limits.h"

namespace shoal::gpu::emulation {
namespace {

constexpr int64_t kLeastPriority = 0;
constexpr int64_t kGreatestPriority = -5;

// What a copy reads and writes.
struct Ends {
  Place from = Place::kPageable;
  Place to = Place::kPageable;
  int open = AddressSpace::kAll;  // the GPU whose memory it needs
};

// False if the runtime would refuse the copy.
bool FindEnds(Machine& machine, const void* to, const void* from, int64_t bytes,
              cudaMemcpyKind kind, Ends& ends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  if (to == nullptr || from == nullptr || bytes < 0) {
    return false;
  }
  bool torn_to = false;
  bool torn_from = false;
  const AddressSpace::Range* to_range = machine.memory->Find(to, bytes, torn_to);
  const AddressSpace::Range* from_range = machine.memory->Find(from, bytes, torn_from);
  if (torn_to || torn_from) {
    return false;
  }
  ends.to = to_range == nullptr ? Place::kPageable : to_range->place;
  ends.from = from_range == nullptr ? Place::kPageable : from_range->place;
  const bool to_device = ends.to == Place::kDevice;
  const bool from_device = ends.from == Place::kDevice;
  if (to_device && !(from_device && from_range->device != to_range->device)) {
    ends.open = to_range->device;
  } else if (from_device && !to_device) {
    ends.open = from_range->device;
  }
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

void Count(Machine& machine, const Ends& ends, int64_t bytes)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  EmulatedCounters& counters = machine.counters;
  const bool to_device = ends.to == Place::kDevice;
  const bool from_device = ends.from == Place::kDevice;
  ++(to_device ? (from_device ? counters.copies_on_device : counters.copies_to_device)
               : (from_device ? counters.copies_to_host : counters.copies_on_host));
  (to_device ? (from_device ? counters.bytes_on_device : counters.bytes_to_device)
             : (from_device ? counters.bytes_to_host : counters.bytes_on_host)) += bytes;
}

cudaError_t PutCopy(Machine& machine, CUstream_st& stream, void* to, const void* from, size_t bytes,
                    cudaMemcpyKind kind, bool wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  Ends ends;
  if (!FindEnds(machine, to, from, static_cast<int64_t>(bytes), kind, ends)) {
    return cudaErrorInvalidValue;
  }
  Count(machine, ends, static_cast<int64_t>(bytes));
  std::shared_ptr<std::vector<std::byte>> staged;
  if (ends.to == Place::kDevice && ends.from == Place::kPageable) {
    const auto* begin = static_cast<const std::byte*>(from);
    staged = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
  }
  const int device = stream.device;
  const auto copy = [&machine, device, to, from, bytes, open = ends.open, staged] {
    Machine& m = machine;
    m.mutex.AssertHeld();
    m.Act(device, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      m.memory->Open(open);
      std::memmove(to, staged != nullptr ? staged->data() : from, bytes);
    });
  };
  // What is staged, or done on return, belongs to the caller again.
  const bool uses_to = ends.to == Place::kPinned;
  const bool uses_from = ends.from == Place::kPinned;
  const auto* const host = static_cast<const std::byte*>(uses_from ? from : to);
  const HostRange range = {.begin = host, .bytes = static_cast<int64_t>(bytes)};
  const bool pageable = ends.to == Place::kPageable || ends.from == Place::kPageable;
  machine.counters.pageable_copies += pageable && !wait ? 1 : 0;
  const std::shared_ptr<Point> point =
      machine.Put(stream, copy, uses_to || uses_from ? range : HostRange());
  const bool done_on_return = wait ||
                              (ends.to == Place::kPageable && ends.from == Place::kDevice) ||
                              (ends.to != Place::kDevice && ends.from != Place::kDevice);
  return done_on_return ? machine.RunUntil(*point) : cudaSuccess;
}

cudaError_t PutFill(Machine& machine, CUstream_st& stream, void* to, int value, size_t bytes)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  const auto length = static_cast<int64_t>(bytes);
  bool torn = false;
  const AddressSpace::Range* range =
      to == nullptr || length < 0 ? nullptr : machine.memory->Find(to, length, torn);
  if (range == nullptr || torn) {
    return cudaErrorInvalidValue;
  }
  ++machine.counters.fills;
  const int open = range->place == Place::kDevice ? range->device : AddressSpace::kNone;
  machine.Put(stream, [&machine, device = stream.device, open, to, value, bytes] {
    Machine& m = machine;
    m.mutex.AssertHeld();
    m.Act(device, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      m.memory->Open(open);
      std::memset(to, value, bytes);
    });
  });
  return cudaSuccess;
}

}  // namespace

void PutLaunch(cudaStream_t handle, Extent grid, int threads, int64_t shared_bytes,
               const void* kernel, std::function<void()> thread) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaLaunchKernel"); error != cudaSuccess) {
    Noted(error);
    return;
  }
  CUstream_st* stream = machine.Find(handle);
  if (stream == nullptr || stream->device != CurrentDevice()) {
    Noted(cudaErrorInvalidResourceHandle);
    return;
  }
  if (!IsGrid(grid.x, grid.y, grid.z) || threads < 1 || threads > kMaxBlockThreads) {
    Noted(cudaErrorInvalidConfiguration);
    return;
  }
  const auto allowed = machine.allowed_shared.find({stream->device, kernel});
  const bool needs_more =
      MustAskForShared(shared_bytes) &&
      (allowed == machine.allowed_shared.end() || allowed->second < shared_bytes);
  if (shared_bytes < 0 || shared_bytes > machine.gpus.shared_bytes || needs_more) {
    Noted(cudaErrorInvalidValue);
    return;
  }
  ++machine.counters.launches;
  machine.Put(*stream, [&machine, device = stream->device, grid, threads, shared_bytes,
                        thread = std::move(thread)] {
    Machine& m = machine;
    m.mutex.AssertHeld();
    m.Act(device, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      m.memory->Open(device);
      RunBlocks(grid, threads, shared_bytes, m.RandomNumber(), thread, m.gpus.runs == Runs::kEnds);
    });
  });
}

}  // namespace shoal::gpu::emulation

using shoal::gpu::emulation::CurrentDevice;
using shoal::gpu::emulation::Machine;
using shoal::gpu::emulation::Noted;
using shoal::gpu::emulation::Point;
using shoal::gpu::emulation::PutCopy;
using shoal::gpu::emulation::PutFill;

namespace {

// To CUDA what was never recorded is done. Nobody intends to wait for that.
std::shared_ptr<Point> RecordedPoint(const CUevent_st& event) {
  if (event.point == nullptr) {
    shoal::internal::CheckFailed(__FILE__, __LINE__, "waits for an event that was never recorded");
  }
  return event.point;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaStreamCreateWithPriority");
      error != cudaSuccess) {
    return Noted(error);
  }
  *stream = machine.NewStream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaStreamCreateWithFlags"); error != cudaSuccess) {
    return Noted(error);
  }
  *stream = machine.NewStream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaDeviceGetStreamPriorityRange");
      error != cudaSuccess) {
    return Noted(error);
  }
  *least = shoal::gpu::emulation::kLeastPriority;
  *greatest = shoal::gpu::emulation::kGreatestPriority;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t handle) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaStreamDestroy"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = machine.Find(handle);
  if (stream == nullptr || handle == nullptr || handle == cudaStreamLegacy) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  machine.Destroy(*stream);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t handle) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaStreamSynchronize"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = machine.Find(handle);
  return Noted(stream == nullptr ? cudaErrorInvalidResourceHandle : machine.RunUntilEmpty(*stream));
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t handle) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaStreamQuery"); error != cudaSuccess) {
    return Noted(error);
  }
  const CUstream_st* stream = machine.Find(handle);
  if (stream == nullptr) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  machine.RunSome();
  if (const cudaError_t error = machine.sticky(); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaStreamWaitEvent"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = machine.Find(handle);
  if (stream == nullptr || !machine.events.contains(event)) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  machine.PutWait(*stream, RecordedPoint(*event));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaEventCreateWithFlags"); error != cudaSuccess) {
    return Noted(error);
  }
  *event =
      new CUevent_st{.device = CurrentDevice(), .timed = (flags & cudaEventDisableTiming) == 0};
  machine.events.insert(*event);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaEventRecord"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = machine.Find(handle);
  if (stream == nullptr || !machine.events.contains(event) || event->device != stream->device) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  event->point = machine.Put(*stream, nullptr);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaEventQuery"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!machine.events.contains(event)) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  const std::shared_ptr<Point> point = RecordedPoint(*event);
  machine.RunSome();
  if (const cudaError_t error = machine.sticky(); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(point->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaEventSynchronize"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!machine.events.contains(event)) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  const std::shared_ptr<Point> point = RecordedPoint(*event);
  return Noted(machine.RunUntil(*point));
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaEventDestroy"); error != cudaSuccess) {
    return Noted(error);
  }
  if (machine.events.erase(event) == 0) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  delete event;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                           cudaEvent_t end) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaEventElapsedTime"); error != cudaSuccess) {
    return Noted(error);
  }
  for (cudaEvent_t event : {start, end}) {
    if (!machine.events.contains(event) || !event->timed || event->point == nullptr ||
        event->device != start->device) {
      return Noted(cudaErrorInvalidResourceHandle);
    }
  }
  if (!start->point->done || !end->point->done) {
    return Noted(cudaErrorNotReady);
  }
  const std::chrono::duration<float, std::milli> elapsed = end->point->at - start->point->at;
  if (elapsed.count() < 0) {  // which no document specifies
    return Noted(cudaErrorInvalidValue);
  }
  *milliseconds = elapsed.count();
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t handle) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaMemcpyAsync"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = machine.Find(handle);
  return Noted(stream == nullptr
                   ? cudaErrorInvalidResourceHandle
                   : PutCopy(machine, *stream, to, from, bytes, kind, /*wait=*/false));
}

cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaMemcpy"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(PutCopy(machine, *machine.Find(nullptr), to, from, bytes, kind, /*wait=*/true));
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaMemsetAsync"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = machine.Find(handle);
  return Noted(stream == nullptr ? cudaErrorInvalidResourceHandle
                                 : PutFill(machine, *stream, to, value, bytes));
}

cudaError_t CUDARTAPI cudaMemset(void* to, int value, size_t bytes) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaMemset"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(PutFill(machine, *machine.Find(nullptr), to, value, bytes));
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute,
                                           int value) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (const cudaError_t error = machine.Begin("cudaFuncSetAttribute"); error != cudaSuccess) {
    return Noted(error);
  }
  ++machine.counters.shared_questions;
  if (kernel == nullptr || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > machine.gpus.shared_bytes) {
    return Noted(cudaErrorInvalidValue);
  }
  machine.allowed_shared[{CurrentDevice(), kernel}] = value;
  return cudaSuccess;
}

}  // extern "C"
