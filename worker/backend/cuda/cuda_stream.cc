#include "worker/backend/cuda/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "gpu/cuda_status.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

// Between two looks at an event: the first, and the longest, to which the pause doubles.
constexpr absl::Duration kFirstPause = absl::Microseconds(5);
constexpr absl::Duration kLongestPause = absl::Microseconds(200);

}  // namespace

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) {
    context_.GiveEvent(event_);
  }
}

bool CudaEvent::WaitDone(absl::Duration timeout) {
  // Also where nothing but waiting is done in this thread: else the runtime sets up the first GPU
  // for it, whichever is ours. One that cannot be had any more has nothing to wait for.
  if (event_ == nullptr || !context_.MakeCurrent().ok()) {
    return true;
  }
  absl::Time deadline;
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // which the next launch would take for its own
    }
    if (error != cudaErrorNotReady) {
      return true;
    }
    if (timeout <= absl::ZeroDuration()) {
      return false;
    }
    const absl::Time now = context_.clock().Now();
    if (pause == kFirstPause) {
      deadline = now + timeout;
    }
    if (now >= deadline) {
      return false;
    }
    context_.clock().SleepFor(std::min(pause, deadline - now));
  }
}

absl::Status CudaEvent::Wait() {
  if (event_ != nullptr) {
    SHOAL_RETURN_IF_ERROR(context_.MakeCurrent());
    absl::Status status =
        context_.Check(cudaEventSynchronize(event_), "waiting for what is before an event");
    if (status_.ok()) {
      return status;
    }
  }
  return status_;
}

absl::Time CudaEvent::at() const {
  return event_ == nullptr ? context_.clock().Now() : context_.TimeOf(event_);
}

CudaStream::CudaStream(CudaContext& context, StreamKind kind) : context_(context) {
  absl::StatusOr<cudaStream_t> stream = context.NewStream(kind == StreamKind::kCopy);
  if (stream.ok()) {
    stream_ = *stream;
  } else {
    error_ = std::move(stream).status();
  }
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) {
    (void)cudaStreamSynchronize(stream_);
    context_.DestroyStream(stream_);
  }
}

bool CudaStream::Ready() {
  if (error_.ok()) {
    error_ = context_.MakeCurrent();
  }
  return error_.ok();
}

void CudaStream::Note(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess && error_.ok()) {
    error_ = context_.Check(error, what);
  }
}

void CudaStream::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || !Ready()) {
    return;
  }
  const cudaError_t error =
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_);
  if (error != cudaSuccess) {
    Note(error, fmt::format("copying {} B from {} to {}", bytes, from, to));
  }
}

void CudaStream::Fill(void* to, std::byte value, int64_t bytes) {
  if (bytes == 0 || !Ready()) {
    return;
  }
  const cudaError_t error =
      cudaMemsetAsync(to, static_cast<int>(value), static_cast<size_t>(bytes), stream_);
  if (error != cudaSuccess) {
    Note(error, fmt::format("filling {} B at {}", bytes, to));
  }
}

// Also on a stream that has failed: what was put on it before may be under way.
std::unique_ptr<Event> CudaStream::Record() {
  cudaEvent_t recorded = nullptr;
  const absl::Status current = context_.MakeCurrent();
  error_.Update(current);
  if (stream_ != nullptr && current.ok()) {
    if (absl::StatusOr<cudaEvent_t> event = context_.TakeEvent(); !event.ok()) {
      error_.Update(std::move(event).status());
    } else if (const cudaError_t error = cudaEventRecord(*event, stream_); error == cudaSuccess) {
      recorded = *event;
    } else {
      context_.GiveEvent(*event);
      Note(error, "recording an event");
    }
  }
  return std::make_unique<CudaEvent>(context_, recorded, error_);
}

void CudaStream::WaitFor(const Event& event) {
  const auto& other = static_cast<const CudaEvent&>(event);
  if (!Ready()) {
    return;
  }
  error_ = other.status();
  if (other.handle() != nullptr) {
    Note(cudaStreamWaitEvent(stream_, other.handle(), 0), "waiting for an event of a stream");
  }
}

absl::Status CudaStream::Synchronize() {
  if (stream_ == nullptr) {
    return error_;
  }
  // Also where the stream has failed: what is on it is done then.
  const std::unique_ptr<Event> event = Record();
  if (static_cast<const CudaEvent&>(*event).handle() == nullptr) {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaGetLastError();
  } else if (absl::Status status = event->Wait(); error_.ok()) {
    error_ = std::move(status);
  }
  // It was told, and a GPU that has failed says so again at the next call.
  return std::exchange(error_, absl::OkStatus());
}

}  // namespace shoal::worker::cuda
