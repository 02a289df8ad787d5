// The runtime's functions for streams, events, copies and launches.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/gpu/fake_cuda/block.h"
#include "core/gpu/fake_cuda/fake_gpus.h"
#include "core/gpu/fake_cuda/launch.h"
#include "core/gpu/launch_limits.h"

namespace shoal::gpu::fake_cuda {
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
bool FindEnds(FakeGpus& fake, const void* to, const void* from, int64_t bytes, cudaMemcpyKind kind,
              Ends& ends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  if (to == nullptr || from == nullptr || bytes < 0) {
    return false;
  }
  bool torn_to = false;
  bool torn_from = false;
  const AddressSpace::Range* to_range = fake.memory->Find(to, bytes, torn_to);
  const AddressSpace::Range* from_range = fake.memory->Find(from, bytes, torn_from);
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

void Count(FakeGpus& fake, const Ends& ends, int64_t bytes)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  FakeGpuCounters& counters = fake.counters;
  const bool to_device = ends.to == Place::kDevice;
  const bool from_device = ends.from == Place::kDevice;
  ++(to_device ? (from_device ? counters.copies_on_device : counters.copies_to_device)
               : (from_device ? counters.copies_to_host : counters.copies_on_host));
  (to_device ? (from_device ? counters.bytes_on_device : counters.bytes_to_device)
             : (from_device ? counters.bytes_to_host : counters.bytes_on_host)) += bytes;
}

cudaError_t PutCopy(FakeGpus& fake, CUstream_st& stream, void* to, const void* from, size_t bytes,
                    cudaMemcpyKind kind, bool wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  Ends ends;
  if (!FindEnds(fake, to, from, static_cast<int64_t>(bytes), kind, ends)) {
    return cudaErrorInvalidValue;
  }
  Count(fake, ends, static_cast<int64_t>(bytes));
  std::shared_ptr<std::vector<std::byte>> staged;
  if (ends.to == Place::kDevice && ends.from == Place::kPageable) {
    const auto* begin = static_cast<const std::byte*>(from);
    staged = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
  }
  const int device = stream.device;
  const auto copy = [&fake, device, to, from, bytes, open = ends.open, staged] {
    FakeGpus& m = fake;
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
  fake.counters.pageable_copies += pageable && !wait ? 1 : 0;
  const std::shared_ptr<Point> point =
      fake.Put(stream, copy, uses_to || uses_from ? range : HostRange());
  const bool done_on_return = wait ||
                              (ends.to == Place::kPageable && ends.from == Place::kDevice) ||
                              (ends.to != Place::kDevice && ends.from != Place::kDevice);
  return done_on_return ? fake.RunUntil(*point) : cudaSuccess;
}

cudaError_t PutFill(FakeGpus& fake, CUstream_st& stream, void* to, int value, size_t bytes)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  const auto length = static_cast<int64_t>(bytes);
  bool torn = false;
  const AddressSpace::Range* range =
      to == nullptr || length < 0 ? nullptr : fake.memory->Find(to, length, torn);
  if (range == nullptr || torn) {
    return cudaErrorInvalidValue;
  }
  ++fake.counters.fills;
  const int open = range->place == Place::kDevice ? range->device : AddressSpace::kNone;
  fake.Put(stream, [&fake, device = stream.device, open, to, value, bytes] {
    FakeGpus& m = fake;
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
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaLaunchKernel"); error != cudaSuccess) {
    Noted(error);
    return;
  }
  CUstream_st* stream = fake.Find(handle);
  if (stream == nullptr || stream->device != CurrentDevice()) {
    Noted(cudaErrorInvalidResourceHandle);
    return;
  }
  if (!IsGrid(grid.x, grid.y, grid.z) || threads < 1 || threads > kMaxBlockThreads) {
    Noted(cudaErrorInvalidConfiguration);
    return;
  }
  const auto allowed = fake.allowed_shared.find({stream->device, kernel});
  const bool needs_more = MustAskForShared(shared_bytes) &&
                          (allowed == fake.allowed_shared.end() || allowed->second < shared_bytes);
  if (shared_bytes < 0 || shared_bytes > fake.gpus.shared_bytes || needs_more) {
    Noted(cudaErrorInvalidValue);
    return;
  }
  ++fake.counters.launches;
  fake.Put(*stream, [&fake, device = stream->device, grid, threads, shared_bytes,
                     thread = std::move(thread)] {
    FakeGpus& m = fake;
    m.mutex.AssertHeld();
    m.Act(device, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      m.memory->Open(device);
      RunBlocks(grid, threads, shared_bytes, m.RandomNumber(), thread, m.gpus.runs == Runs::kEnds);
    });
  });
}

}  // namespace shoal::gpu::fake_cuda

using shoal::gpu::fake_cuda::CurrentDevice;
using shoal::gpu::fake_cuda::FakeGpus;
using shoal::gpu::fake_cuda::Noted;
using shoal::gpu::fake_cuda::Point;
using shoal::gpu::fake_cuda::PutCopy;
using shoal::gpu::fake_cuda::PutFill;

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
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaStreamCreateWithPriority"); error != cudaSuccess) {
    return Noted(error);
  }
  *stream = fake.NewStream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaStreamCreateWithFlags"); error != cudaSuccess) {
    return Noted(error);
  }
  *stream = fake.NewStream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaDeviceGetStreamPriorityRange");
      error != cudaSuccess) {
    return Noted(error);
  }
  *least = shoal::gpu::fake_cuda::kLeastPriority;
  *greatest = shoal::gpu::fake_cuda::kGreatestPriority;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t handle) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaStreamDestroy"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = fake.Find(handle);
  if (stream == nullptr || handle == nullptr || handle == cudaStreamLegacy) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  fake.Destroy(*stream);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t handle) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaStreamSynchronize"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = fake.Find(handle);
  return Noted(stream == nullptr ? cudaErrorInvalidResourceHandle : fake.RunUntilEmpty(*stream));
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t handle) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaStreamQuery"); error != cudaSuccess) {
    return Noted(error);
  }
  const CUstream_st* stream = fake.Find(handle);
  if (stream == nullptr) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  fake.RunSome();
  if (const cudaError_t error = fake.sticky(); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaStreamWaitEvent"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = fake.Find(handle);
  if (stream == nullptr || !fake.events.contains(event)) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  fake.PutWait(*stream, RecordedPoint(*event));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaEventCreateWithFlags"); error != cudaSuccess) {
    return Noted(error);
  }
  *event =
      new CUevent_st{.device = CurrentDevice(), .timed = (flags & cudaEventDisableTiming) == 0};
  fake.events.insert(*event);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaEventRecord"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = fake.Find(handle);
  if (stream == nullptr || !fake.events.contains(event) || event->device != stream->device) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  event->point = fake.Put(*stream, nullptr);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaEventQuery"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!fake.events.contains(event)) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  const std::shared_ptr<Point> point = RecordedPoint(*event);
  fake.RunSome();
  if (const cudaError_t error = fake.sticky(); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(point->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaEventSynchronize"); error != cudaSuccess) {
    return Noted(error);
  }
  if (!fake.events.contains(event)) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  const std::shared_ptr<Point> point = RecordedPoint(*event);
  return Noted(fake.RunUntil(*point));
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaEventDestroy"); error != cudaSuccess) {
    return Noted(error);
  }
  if (fake.events.erase(event) == 0) {
    return Noted(cudaErrorInvalidResourceHandle);
  }
  delete event;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                           cudaEvent_t end) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaEventElapsedTime"); error != cudaSuccess) {
    return Noted(error);
  }
  for (cudaEvent_t event : {start, end}) {
    if (!fake.events.contains(event) || !event->timed || event->point == nullptr ||
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
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaMemcpyAsync"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = fake.Find(handle);
  return Noted(stream == nullptr ? cudaErrorInvalidResourceHandle
                                 : PutCopy(fake, *stream, to, from, bytes, kind, /*wait=*/false));
}

cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaMemcpy"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(PutCopy(fake, *fake.Find(nullptr), to, from, bytes, kind, /*wait=*/true));
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaMemsetAsync"); error != cudaSuccess) {
    return Noted(error);
  }
  CUstream_st* stream = fake.Find(handle);
  return Noted(stream == nullptr ? cudaErrorInvalidResourceHandle
                                 : PutFill(fake, *stream, to, value, bytes));
}

cudaError_t CUDARTAPI cudaMemset(void* to, int value, size_t bytes) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaMemset"); error != cudaSuccess) {
    return Noted(error);
  }
  return Noted(PutFill(fake, *fake.Find(nullptr), to, value, bytes));
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute,
                                           int value) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = fake.Begin("cudaFuncSetAttribute"); error != cudaSuccess) {
    return Noted(error);
  }
  ++fake.counters.shared_questions;
  if (kernel == nullptr || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > fake.gpus.shared_bytes) {
    return Noted(cudaErrorInvalidValue);
  }
  fake.allowed_shared[{CurrentDevice(), kernel}] = value;
  return cudaSuccess;
}

}  // extern "C"
