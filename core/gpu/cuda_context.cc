#include "core/gpu/cuda_context.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"

namespace shoal::gpu {
namespace {

// The time since the base is a float in milliseconds: precise to 2 microseconds up to here.
constexpr float kMostMilliseconds = 16384;
// More than these are returned to the driver.
constexpr size_t kMostFreeEvents = 4096;
constexpr absl::Duration kFenceLook = absl::Microseconds(50);
// Pauses between two looks: the first, and the longest, to which they double. A look blocks the
// driver for threads that launch meanwhile; if all of a stream is waited for, the thread that would
// launch there is the one that waits.
constexpr absl::Duration kFirstPause = absl::Microseconds(5);
constexpr absl::Duration kLongestPause = absl::Microseconds(200);
constexpr absl::Duration kLongestPauseAtTheEnd = absl::Microseconds(50);

// Uses the machine's clock, which is also the GPU's, whatever clock reports its times.
cudaError_t RepeatUntil(absl::FunctionRef<cudaError_t()> look, absl::Duration timeout,
                        absl::Duration longest_pause = kLongestPause) {
  absl::Time deadline;
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, longest_pause)) {
    const cudaError_t error = look();
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // the next launch would report it as its own
    }
    if (error != cudaErrorNotReady || timeout <= absl::ZeroDuration()) {
      return error;
    }
    const absl::Time now = RealClock().Now();
    if (pause == kFirstPause) {
      deadline = now + timeout;
    }
    if (now >= deadline) {
      return error;
    }
    RealClock().SleepFor(std::min(pause, deadline - now));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Create(int gpu, Clock& clock) {
  SHOAL_ASSIGN_OR_RETURN(GpuDescription description, DescribeGpu(gpu));
  SHOAL_RETURN_IF_ERROR(CheckSupported(description));
  std::unique_ptr<CudaContext> context(new CudaContext(std::move(description), clock));
  SHOAL_RETURN_IF_ERROR(context->MakeCurrent());
  absl::MutexLock lock(&context->clock_mutex_);
  SHOAL_RETURN_IF_ERROR(
      context->Check(cudaStreamCreateWithFlags(&context->clock_stream_, cudaStreamNonBlocking),
                     "making a stream"));
  SHOAL_ASSIGN_OR_RETURN(context->base_event_, context->NewEvent());
  SHOAL_RETURN_IF_ERROR(context->NoteTime());
  return context;
}

CudaContext::~CudaContext() {
  (void)MakeCurrent();
  {
    absl::MutexLock lock(&clock_mutex_);
    if (base_event_ != nullptr) {
      (void)cudaEventDestroy(base_event_);
    }
    if (clock_stream_ != nullptr) {
      (void)cudaStreamDestroy(clock_stream_);
    }
  }
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(streams_.empty());
  for (cudaEvent_t event : free_events_) {
    (void)cudaEventDestroy(event);
  }
  (void)cudaGetLastError();
}

absl::Status CudaContext::MakeCurrent() const {
  return Check(cudaSetDevice(gpu_.index), "making it current");
}

absl::Status CudaContext::Check(cudaError_t error, std::string_view what) const {
  return ToStatus(error, gpu_.index, what);
}

absl::StatusOr<cudaStream_t> CudaContext::NewStream(bool copies) {
  SHOAL_RETURN_IF_ERROR(MakeCurrent());
  int least = 0;
  int greatest = 0;
  SHOAL_RETURN_IF_ERROR(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                              "asking for priorities of streams"));
  cudaStream_t stream = nullptr;
  SHOAL_RETURN_IF_ERROR(
      Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, copies ? greatest : least),
            "making a stream"));
  absl::MutexLock lock(&mutex_);
  streams_.insert(stream);
  return stream;
}

void CudaContext::DestroyStream(cudaStream_t stream) {
  (void)MakeCurrent();
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
  (void)cudaStreamDestroy(stream);
  (void)cudaGetLastError();
}

absl::StatusOr<cudaEvent_t> CudaContext::NewEvent() const {
  cudaEvent_t event = nullptr;
  SHOAL_RETURN_IF_ERROR(
      Check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "making an event"));
  return event;
}

absl::StatusOr<cudaEvent_t> CudaContext::TakeEvent() {
  absl::MutexLock lock(&mutex_);
  return TakeEventLocked();
}

absl::StatusOr<cudaEvent_t> CudaContext::TakeEventLocked() {
  if (free_events_.empty()) {
    return NewEvent();
  }
  cudaEvent_t event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void CudaContext::GiveEvent(cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  if (free_events_.size() < kMostFreeEvents) {
    free_events_.push_back(event);
    return;
  }
  (void)cudaEventDestroy(event);
}

Mark CudaContext::PutMark(cudaStream_t stream, absl::Status& failure) {
  failure = MakeCurrent();  // a new event would belong to another GPU
  if (!failure.ok()) {
    return {.stream = stream};
  }
  absl::MutexLock lock(&mutex_);
  return PutMarkLocked(stream, failure);
}

Mark CudaContext::PutMarkLocked(cudaStream_t stream, absl::Status& failure) {
  absl::StatusOr<cudaEvent_t> event = TakeEventLocked();
  if (!event.ok()) {
    failure = std::move(event).status();
    return {.stream = stream};
  }
  failure = Check(cudaEventRecord(*event, stream), "recording an event");
  if (!failure.ok()) {
    free_events_.push_back(*event);
    return {.stream = stream};
  }
  return {.event = *event};
}

void CudaContext::GiveMark(const Mark& mark) {
  if (mark.event != nullptr) {
    GiveEvent(mark.event);
  }
}

cudaError_t CudaContext::Look(const Mark& mark) {
  if (mark.event != nullptr) {
    return cudaEventQuery(mark.event);
  }
  // Under the lock, so that the stream is not destroyed meanwhile. Work on a destroyed stream is
  // done.
  absl::MutexLock lock(&mutex_);
  return streams_.contains(mark.stream) ? cudaStreamQuery(mark.stream) : cudaSuccess;
}

cudaError_t CudaContext::LookUntil(const Mark& mark, absl::Duration timeout) {
  return RepeatUntil([&] { return Look(mark); }, timeout);
}

absl::Status CudaContext::Outcome(cudaError_t error, std::string_view what,
                                  absl::Duration timeout) const {
  if (error == cudaErrorNotReady) {
    return DeadlineExceeded("cuda:{}: {}: not done within {}", gpu_.index, what,
                            absl::FormatDuration(timeout));
  }
  return Check(error, what);
}

absl::Status CudaContext::Await(const Mark& mark, std::string_view what, absl::Duration timeout) {
  // A failure here does not stop the work, so wait for it nevertheless.
  absl::Status status = MakeCurrent();
  status.Update(Outcome(LookUntil(mark, timeout), what, timeout));
  return status;
}

absl::Status CudaContext::Synchronize(cudaStream_t stream, std::string_view what,
                                      absl::Duration timeout) {
  absl::Status status = MakeCurrent();
  const cudaError_t error =
      RepeatUntil([stream] { return cudaStreamQuery(stream); }, timeout, kLongestPauseAtTheEnd);
  status.Update(Outcome(error, what, timeout));
  return status;
}

CudaContext::Fence CudaContext::PutFence() {
  Fence fence;
  const bool current = MakeCurrent().ok();
  // Under the lock, so that no stream is destroyed meanwhile.
  absl::MutexLock lock(&mutex_);
  for (cudaStream_t stream : streams_) {
    absl::Status failure;  // nothing is lost: the fence is done when the stream is
    fence.push_back(current ? PutMarkLocked(stream, failure) : Mark{.stream = stream});
  }
  return fence;
}

bool CudaContext::IsDone(Fence& fence) {
  while (!fence.empty()) {
    if (LookUntil(fence.back(), absl::ZeroDuration()) == cudaErrorNotReady) {
      return false;
    }
    GiveMark(fence.back());
    fence.pop_back();
  }
  return true;
}

absl::Status CudaContext::Wait(Fence& fence) {
  const absl::Time deadline = RealClock().Now() + kWorkTimeout;
  while (!IsDone(fence)) {
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("cuda:{}: work that uses freed memory was not done within {}",
                              gpu_.index, absl::FormatDuration(kWorkTimeout));
    }
    RealClock().SleepFor(kFenceLook);
  }
  return absl::OkStatus();
}

absl::Time CudaContext::TimeOf(cudaEvent_t event) {
  if (!MakeCurrent().ok()) {
    return clock_.Now();
  }
  absl::MutexLock lock(&clock_mutex_);
  absl::StatusOr<float> since = SinceBase(event);
  if (since.ok() && *since > kMostMilliseconds && NoteTime().ok()) {
    since = SinceBase(event);
  }
  if (!since.ok()) {
    if (!clock_failed_) {
      clock_failed_ = true;
      LogWarning("times of the GPU are taken from the host: {}", Message(since.status()));
    }
    return clock_.Now();
  }
  return base_time_ + absl::Milliseconds(static_cast<double>(*since));
}

absl::StatusOr<float> CudaContext::SinceBase(cudaEvent_t event) const {
  float milliseconds = 0;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, base_event_, event);
  if (error == cudaSuccess && milliseconds >= 0) {
    return milliseconds;
  }
  (void)cudaGetLastError();
  // The base may have been renewed since then; no document says that a time may be negative.
  SHOAL_RETURN_IF_ERROR(
      Check(cudaEventElapsedTime(&milliseconds, event, base_event_), "asking when an event was"));
  if (milliseconds < 0) {
    return Internal("cuda:{}: each of two events was before the other", gpu_.index);
  }
  return -milliseconds;
}

absl::Status CudaContext::NoteTime() {
  const absl::Time before = clock_.Now();
  SHOAL_RETURN_IF_ERROR(Check(cudaEventRecord(base_event_, clock_stream_), "recording an event"));
  SHOAL_RETURN_IF_ERROR(
      Outcome(LookUntil({.event = base_event_}, kWorkTimeout), "noting the time", kWorkTimeout));
  base_time_ = before + (clock_.Now() - before) / 2;
  return absl::OkStatus();
}

}  // namespace shoal::gpu
